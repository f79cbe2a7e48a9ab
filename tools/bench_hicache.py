"""Is a prefix better computed again, or fetched from the host?

python tools/bench_hicache.py --model smollm2-135m
python tools/bench_hicache.py --shape qwen3-8b --device cuda --lengths 8000

A prompt is a prefix and a few new tokens. Times are those to its first token: with
nothing known, with the prefix on the device, and with the prefix on the host only, as
it is when the device has needed its place. The least of some trials counts.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:] = [
    p for p in sys.path if Path(p or ".").resolve() != ROOT / "tools"
]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402
import torch  # noqa: E402
import typer  # noqa: E402

from tools.stagekit import measured, model_path  # noqa: E402

ANSWER = 16
WAYS = ("computed", "on device", "from host")


class Bench:
    """An engine with a host tier, and prompts that it has not seen."""

    def __init__(
        self, folder: Path, tokens: int, new: int, **settings: Any
    ) -> None:
        from minisgl.llm import LLM

        page = settings["page_size"]
        self.new = -(-new // page) * page
        room = tokens + self.new + 2 * ANSWER + 3 * page
        self.llm = LLM(
            str(folder),
            num_page_override=-(-room // page),
            max_seq_len_override=room,
            max_extend_tokens=max(tokens, self.new),
            max_running_req=2,
            **settings,
        )
        self.draw = np.random.default_rng(28)

    def prompt(self, length: int) -> list[int]:
        """A prefix of whole pages, and new tokens, of which a page has one."""
        size = self.llm.engine.sampler.vocab_size
        count = length + self.new
        return [int(i) for i in self.draw.integers(0, size, count)]

    def answer(self, prompt: list[int], tokens: int) -> tuple[list[int], float]:
        """Token ids, and milliseconds."""
        from minisgl.core import SamplingParams

        params = SamplingParams(max_tokens=tokens, ignore_eos=True)
        self.wait()
        begin = time.perf_counter()
        found = self.llm.generate([prompt], params, progress=False)
        spent = time.perf_counter() - begin
        return found[0]["token_ids"], 1e3 * spent

    def wait(self) -> None:
        if self.llm.engine.device.type == "cuda":
            torch.cuda.synchronize()

    def clear(self) -> float:
        """Take everything off the device; milliseconds until its place is free."""
        manager = self.llm.cache_manager
        cache = manager.prefix_cache
        self.wait()
        begin = time.perf_counter()
        with torch.inference_mode():
            manager._free(cache.evict(cache.size_info.evictable_size))
        self.wait()
        return 1e3 * (time.perf_counter() - begin)

    def tokens(self, length: int) -> list[list[int]]:
        """The answers to one prompt, in all ways."""
        prompt = self.prompt(length)
        self.clear()
        answers = [self.answer(prompt, ANSWER)[0] for _ in WAYS[:2]]
        self.clear()
        return [*answers, self.answer(prompt, ANSWER)[0]]

    def times(self, length: int, trials: int) -> dict[str, float]:
        """Milliseconds to the first token by way, and those of the eviction."""
        best = dict.fromkeys([*WAYS, "at once", "evicted"], float("inf"))

        def note(name: str, spent: float) -> None:
            best[name] = min(best[name], spent)

        for _ in range(trials):
            prompt = self.prompt(length)
            self.clear()
            for way in WAYS[:2]:
                note(way, self.answer(prompt, 1)[1])
            note("evicted", self.clear())
            note("from host", self.answer(prompt, 1)[1])
            self.clear()
            with _all_layers_first():
                note("at once", self.answer(prompt, 1)[1])
        return best


@contextmanager
def _all_layers_first() -> Iterator[None]:
    """A forward waits for all layers before it reads the first one."""
    from minisgl.kvcache.transfer import Transfers

    arrive = Transfers.arrive

    def all_first(self: Transfers, layer: int) -> None:
        arrive(self, layer)
        for other in [*self._arriving]:
            arrive(self, other)

    Transfers.arrive = all_first  # type: ignore[method-assign]
    try:
        yield
    finally:
        Transfers.arrive = arrive  # type: ignore[method-assign]


def break_even(rows: dict[int, dict[str, float]]) -> str:
    """From which length on loading is quicker, in words."""
    worse = [n for n, row in rows.items() if row["from host"] > row["computed"]]
    better = [n for n in rows if n > max(worse, default=0)]
    if not better:
        return f"break-even: above {max(rows)} tokens"
    least = min(better)
    if not worse:
        return f"break-even: at most {least} tokens"
    return f"break-even: between {max(worse)} and {least} tokens"


def main(
    model: Annotated[str, typer.Option(help="A checkpoint.")] = "smollm2-135m",
    shape: Annotated[
        str | None, typer.Option(help="In its place, a shape without weights.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    lengths: Annotated[
        str, typer.Option(help="Tokens of the prefix.")
    ] = "16,32,64,128,256,512,1024",
    new: Annotated[int, typer.Option(help="Tokens after it.")] = 16,
    page_size: Annotated[int, typer.Option(min=1)] = 16,
    policy: str = "write_through",
    gib: Annotated[float, typer.Option(help="Of the host.")] = 1.0,
    trials: Annotated[int, typer.Option(min=1)] = 3,
    threads: Annotated[int, typer.Option(help="On a CPU.")] = 1,
    most: Annotated[
        float, typer.Option(help="Fail if the longest takes more of the time.")
    ] = 1.0,
) -> None:
    """Print a row for each length, and from where on loading is quicker."""
    from minisgl.benchmark.shapes import shape_folder

    torch.set_num_threads(threads)
    wanted = [int(length) for length in lengths.split(",")]
    place = shape_folder(shape) if shape else nullcontext(model_path(model))
    with place as folder:
        bench = Bench(
            folder,
            max(wanted),
            new,
            use_dummy_weight=shape is not None,
            dtype="float32" if device == "cpu" else "bfloat16",
            device=device,
            page_size=page_size,
            host_cache_gb=gib,
            host_cache_policy=policy,
        )
        ratio = _report(bench, shape or model, policy, wanted, trials)
    if ratio > most:
        raise SystemExit(f"error: {ratio:.2f} of the time, not {most} at most")


def _report(
    bench: Bench, name: str, policy: str, lengths: list[int], trials: int
) -> float:
    engine = bench.llm.engine
    pool = engine.ctx.kv_cache
    size = 2 * pool.num_layers * pool.k_cache(0)[0].nbytes
    where = engine.device.type
    if where == "cuda":
        where = torch.cuda.get_device_name()
    per_token = size / engine.ctx.page_size / 1024
    print(f"{name} on {where}, {policy}, {per_token:.0f} KiB a token")
    print(f"to the first token, {bench.new} of the prompt's tokens being new")
    print(" prefix   computed  on device  from host   at once    evicted")
    bench.times(max(lengths), 1)  # compiles, loads, pins
    rows = {}
    for length in lengths:
        row = rows[length] = bench.times(length, trials)
        cells = " ".join(
            f"{measured(value, 'ms'):>10}" for value in row.values()
        )
        print(f"{length:7,} {cells}", flush=True)
    print(break_even(rows))
    longest = max(lengths)
    ratio = rows[longest]["from host"] / rows[longest]["computed"]
    print(f"{longest:,} tokens: {ratio:.2f} of the time to compute them")
    first, *others = bench.tokens(longest)
    same = sum(other == first for other in others)
    print(f"answers of {ANSWER} tokens equal to the computed one: {same} of 2")
    if same < 2:
        raise SystemExit("error: the answers differ")
    return ratio


if __name__ == "__main__":
    typer.run(main)
