"""Drivers that speculate, and models that guess badly for one another."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from minisgl.scheduler.speculative import SpeculativeScheduler
from minisgl.scheduler.verify import VerifyBatch
from tests.driver import Driver


class SpeculativeDriver(Driver):
    """A `Driver` whose scheduler speculates, by n-grams unless told otherwise.

    checked: of every step with drafts, by number of the request, how many.
    """

    def __init__(self, folder: str | Path, **settings: Any) -> None:
        settings = {"speculative": "ngram"} | settings
        if settings["speculative"] == "ngram":  # None: as without a drafter
            settings = {"speculative_ngram_min": 1} | settings
        super().__init__(folder, scheduler=SpeculativeScheduler, **settings)
        self.checked: list[dict[int, int]] = []
        prepare = self.scheduler._prepare_verify

        def noted(batch: VerifyBatch) -> Any:
            counts = {s.req.uid: len(s.draft.tokens) for s in batch.spans}
            # There is room for one more token, the model's own.
            assert all(s.held < s.req.max_device_len for s in batch.spans)
            self.checked.append(counts)
            return prepare(batch)

        self.scheduler._prepare_verify = noted

    @property
    def drafted(self) -> int:
        return sum(sum(counts.values()) for counts in self.checked)

    def step(self) -> Any:
        sent = super().step()
        self.assert_every_page_has_one_owner()
        return sent

    def assert_every_page_has_one_owner(self) -> None:
        """Between two steps, with requests running, no page is lost or lent twice."""
        scheduler = self.scheduler
        if self.data is not None:  # what is in flight holds more
            return
        pages, size = scheduler.cache_manager, scheduler.config.page_size
        chunks = [p.chunked_req for p in scheduler.prefill_manager.pending_list]
        running = scheduler.decode_manager.running_reqs.values()
        owned = pages.free_pages.tolist()
        for req in [*running, *(chunk for chunk in chunks if chunk)]:
            held = -(-req.cached_len // size) * size
            row = pages.page_table[req.table_idx]
            own = row[req.cache_handle.cached_len : held : size] // size
            owned += own.tolist()
        assert len(owned) == len(set(owned)), "a page has two owners"
        cached = pages.prefix_cache.size_info.total_size // size
        assert len(owned) + cached == pages.num_pages, "a page is lost"


def noisy(source: Path, folder: Path, scale: float) -> Path:
    """The model in `folder` with noise on its weights: it guesses worse."""
    folder.mkdir()
    for file in source.iterdir():
        if file.suffix != ".safetensors":
            (folder / file.name).write_bytes(file.read_bytes())
            continue
        noise = torch.Generator().manual_seed(1)
        weights = load_file(file)
        for weight in weights.values():
            weight += (
                scale
                * weight.std()
                * torch.randn(weight.shape, generator=noise)
            )
        save_file(weights, folder / file.name)
    return folder
