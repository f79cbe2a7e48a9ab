"""The one parity helper: the engine's tokens against those of transformers.

A reference is the greedy answer of `transformers` in float32, computed when it is
asked for and kept in `.cache/refs`. With every token goes the gap between the two
best logits, in standard deviations of that step's logits. Fixed prompts (`PROMPTS`)
have no gap under `CLEAR_GAP`, so an engine must give exactly these ids; only where a
gap is under `NOISE_GAP` two right computations may choose differently.
"""

import functools
import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.prompts import SEEDS, TEXTS, random_prompt
from tools.models import model_path
from tools.zoo.places import cache_dir

CLEAR_GAP = 1e-3
NOISE_GAP = 1e-4
PER_TOKENS = 2000


@dataclass(frozen=True)
class Reference:
    """Greedy ids of transformers and, for each, the gap to the second best logit."""

    ids: list[int]
    gaps: list[float]


def model_under_test(default: str) -> Path:
    """The model of a chapter's tests: MINISGL_TEST_MODEL, else `default`."""
    return model_path(os.environ.get("MINISGL_TEST_MODEL") or default)


def prompts(model: str | Path) -> list[list[int]]:
    """Fixed uneven prompts of a model (its name or folder) as token ids."""
    return PROMPTS[str(model)]


class _Prompts(dict[str, list[list[int]]]):
    def __missing__(self, model: str) -> list[list[int]]:
        name = Path(model).name
        if name in SEEDS:
            found = [
                random_prompt(seed, length) for length, seed in SEEDS[name]
            ]
        else:
            found = _chat_prompts(model_path(model))
        self[model] = found
        return found


PROMPTS = _Prompts()
"""Fixed prompts by model name or folder; see `prompts`."""


def random_prompts(
    seed: int, n: int, lo: int, hi: int, vocab: int = 500
) -> list[list[int]]:
    """`n` prompts of `lo` to `hi` (inclusive) random ids below `vocab`."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(lo, hi + 1, n).tolist()
    return [rng.integers(0, vocab, length).tolist() for length in lengths]


def reference(
    model: str | Path,
    prompt_ids: Sequence[int],
    max_tokens: int,
    ignore_eos: bool = True,
) -> Reference:
    """What transformers answers greedily in float32.

    Args:
        model: name or folder of a checkpoint.
        ignore_eos: go on to exactly `max_tokens` ids. Otherwise the end tokens of
            generation_config.json and config.json end the answer and are its last id.
    """
    folder = model_path(str(model))
    prompt = [int(token) for token in prompt_ids]
    parts = [_versions(), _fingerprint(folder), prompt, max_tokens, ignore_eos]
    key = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
    kept = cache_dir() / "refs" / f"{key[:32]}.json"
    if kept.is_file():
        return Reference(**json.loads(kept.read_text()))
    found = _generate(folder, prompt, max_tokens, ignore_eos)
    kept.parent.mkdir(parents=True, exist_ok=True)
    scratch = kept.with_suffix(f".{os.getpid()}")
    scratch.write_text(json.dumps({"ids": found.ids, "gaps": found.gaps}))
    scratch.replace(kept)
    return found


def assert_parity(got_ids: Sequence[int], expected: Reference) -> None:
    """Fails unless the ids are the reference's.

    A first difference passes only where the gap is under NOISE_GAP, which no fixed
    prompt of a known model has; random workloads go through `RandomParity`.
    """
    at = first_difference(got_ids, expected.ids)
    if at is None:
        return
    tied = (
        at < min(len(got_ids), len(expected.ids))
        and expected.gaps[at] < NOISE_GAP
    )
    assert tied, _explain(got_ids, expected, at)


@dataclass
class RandomParity:
    """Parity over a random workload, where near ties may fall either way.

    A first difference is let through only where the reference's gap is under
    NOISE_GAP; it is counted, and `finish` fails above one in PER_TOKENS tokens.
    """

    tokens: int = 0
    ties: int = 0

    def check(self, got_ids: Sequence[int], expected: Reference) -> None:
        """Compares one answer; only the ids before its first near tie count."""
        assert_parity(got_ids, expected)
        at = first_difference(got_ids, expected.ids)
        self.tokens += len(expected.ids) if at is None else at + 1
        self.ties += at is not None

    def finish(self) -> None:
        """Fails when too many answers differed, or when nothing was compared."""
        assert self.tokens, "RandomParity compared no token"
        assert self.ties * PER_TOKENS <= self.tokens, (
            f"{self.ties} answers fell to the other side of a near tie within"
            f" {self.tokens} tokens: more than 1 in {PER_TOKENS}"
        )


def first_difference(got: Sequence[int], expected: Sequence[int]) -> int | None:
    """Index of the first id that differs or is missing; None when all are equal."""
    for i, (mine, theirs) in enumerate(zip(got, expected, strict=False)):
        if int(mine) != theirs:
            return i
    return None if len(got) == len(expected) else min(len(got), len(expected))


def _explain(got: Sequence[int], expected: Reference, at: int) -> str:
    if at >= min(len(got), len(expected.ids)):
        return (
            f"{len(got)} ids where transformers gives {len(expected.ids)};"
            f" the first {at} are equal"
        )
    ids = [int(token) for token in got]
    return (
        f"token {at}: expected {expected.ids[at]}, got {ids[at]};"
        f" gap of the two best logits {expected.gaps[at]:.1e} std"
        f"\n  expected ...{expected.ids[max(0, at - 3) : at + 5]}"
        f"\n  got      ...{ids[max(0, at - 3) : at + 5]}"
    )


@functools.lru_cache(maxsize=2)
def _load(folder: Path) -> Any:
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig

    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32
    ).eval()
    ends: set[int] = set()
    for config in (model.config, model.generation_config):
        found = config.eos_token_id
        ends.update(found if isinstance(found, list) else [found])
    # An empty one: generate() would fill what a call leaves out from the model's own.
    model.generation_config = GenerationConfig()
    return model, sorted(ends - {None})


def _generate(
    folder: Path, prompt: list[int], max_tokens: int, ignore_eos: bool
) -> Reference:
    import torch

    model, ends = _load(folder)
    ids = torch.tensor([prompt])
    with torch.inference_mode():
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=max_tokens,
            eos_token_id=None if ignore_eos else ends,
            pad_token_id=0,
            output_logits=True,
            return_dict_in_generate=True,
        )
    logits = torch.cat(out.logits)
    best = logits.topk(2).values
    gaps = (best[:, 0] - best[:, 1]) / logits.std(-1)
    return Reference(out.sequences[0, len(prompt) :].tolist(), gaps.tolist())


def _chat_prompts(folder: Path) -> list[list[int]]:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    found = []
    for text in TEXTS:
        message = [{"role": "user", "content": text}]
        chat = tokenizer.apply_chat_template(
            message, add_generation_prompt=True, tokenize=False
        )
        found.append(tokenizer(chat, add_special_tokens=False).input_ids)
    return found


def _versions() -> list[str]:
    # Not `import`: a hit in the cache should not cost the seconds that takes.
    from importlib.metadata import version

    return [version("torch"), version("transformers")]


def _fingerprint(folder: Path) -> str:
    names = ("*.json", "*.safetensors")
    files = sorted(file for name in names for file in folder.glob(name))
    stats = [(file.stat().st_mtime_ns, file.stat().st_size) for file in files]
    return _hash_files(tuple(files), tuple(stats))


@functools.lru_cache(maxsize=8)
def _hash_files(
    files: tuple[Path, ...], stats: tuple[tuple[int, int], ...]
) -> str:
    total = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            content = hashlib.file_digest(stream, "sha256").hexdigest()
        total.update(f"{file.name} {content}\n".encode())
    return total.hexdigest()
