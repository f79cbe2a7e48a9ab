"""Who asks for how much when: recorded traffic, and prompts of given lengths."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

from minisgl.utils.misc import div_ceil

_TEXT = (
    "the of and to in is that it was for on are as with his they at be this "
    "from have or by one had not but what all were when we there can an your "
    "which their said if do will each about how up out them then she many "
    "some so these would other into has more her two like him see time could "
    "no make than first been its who now people my made over did down only"
)
_WORDS = _TEXT.split()


@dataclass(frozen=True)
class BenchmarkTrace:
    """A request of recorded traffic.

    timestamp: seconds after the first one.
    input_length, output_length: tokens of the prompt and of the answer.
    """

    timestamp: float
    message: str
    output_length: int
    input_length: int | None = None


def generate_prompt(tokenizer: Any, n: int) -> str:
    """A text of n tokens, another one at every call.

    tokenizer: with `encode`, `decode` and a length; None gives n words, which
        most vocabularies have as a token each.
    """
    return text_of(tokenizer, n, Random())


def text_of(tokenizer: Any, n: int, rng: Random) -> str:
    """The same, drawn from `rng`."""
    return _join(tokenizer, _draw(tokenizer, n, rng), rng)


def _draw(tokenizer: Any, n: int, rng: Random) -> list[Any]:
    """So many ids, or words."""
    if tokenizer is None:
        return rng.choices(_WORDS, k=n)
    return [rng.randrange(len(tokenizer)) for _ in range(n)]


def _join(tokenizer: Any, drawn: list[Any], rng: Random) -> str:
    """A text of as many tokens as were drawn."""
    if tokenizer is None:
        return " ".join(drawn)
    n, ids = len(drawn), drawn
    # Any ids make a text, but that text may have other ids. Then other ones are
    # tried at its end, from where no character is torn: half a one never settles.
    for _ in range(64):
        text: str = tokenizer.decode(ids, skip_special_tokens=True)
        ids = tokenizer.encode(text, add_special_tokens=False)
        if len(ids) == n:
            break
        kept = ids[: n - 1]
        while kept and tokenizer.decode(kept[-1:]).endswith("\ufffd"):
            kept.pop()
        ids = kept + _draw(tokenizer, n - len(kept), rng)
    return text


def read_mooncake_trace(
    file_path: str, tokenizer: Any, n: int | None = None, dummy: bool = False
) -> list[BenchmarkTrace]:
    """A trace as Mooncake publishes them: one JSON object a line.

    It has `timestamp` in ms, `input_length`, `output_length`, and `hash_ids`,
    one for each 512 tokens of the prompt. The real prompts are secret; those
    made here share beginnings where the real ones did.

    n: the first so many requests only.
    dummy: leave the messages empty.

    Raises:
        ValueError: a line is not of this form.
    """
    lines = islice(_lines(file_path), n)
    return _read(lines, tokenizer, 1000.0, 512, dummy)


def read_qwen_trace(
    file_path: str, tokenizer: Any, n: int | None = None, dummy: bool = False
) -> list[BenchmarkTrace]:
    """A trace as Qwen's service publishes them, otherwise the same.

    Its `timestamp` is in seconds, and a hash stands for 16 tokens.
    """
    lines = islice(_lines(file_path), n)
    return _read(lines, tokenizer, 1.0, 16, dummy)


def scale_traces(
    traces: list[BenchmarkTrace], scale: float
) -> list[BenchmarkTrace]:
    """The same with all times multiplied: with 0.5 twice as many a second."""
    return [replace(t, timestamp=t.timestamp * scale) for t in traces]


def _lines(file_path: str) -> Iterator[tuple[str, str]]:
    """Each line with where it stands."""
    with Path(file_path).open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield f"{file_path}:{number}", line


def _read(
    lines: Iterator[tuple[str, str]],
    tokenizer: Any,
    units: float,
    block: int,
    dummy: bool,
) -> list[BenchmarkTrace]:
    found: list[BenchmarkTrace] = []
    first = 0.0
    for place, text in lines:
        try:
            line = json.loads(text)
            when = line["timestamp"] / units
            size, answer = int(line["input_length"]), int(line["output_length"])
            blocks = line.get("hash_ids") or []
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{place} is no request: {error!r}") from None
        first = when if not found else first
        prompt = "" if dummy else _prompt(tokenizer, size, blocks, block)
        # An answer of no token cannot be asked for.
        length = max(answer, 1)
        found.append(BenchmarkTrace(when - first, prompt, length, size))
    return found


def _prompt(tokenizer: Any, size: int, hashes: list[int], block: int) -> str:
    """About `size` tokens; those of a block follow from its hash alone."""
    drawn: list[Any] = []
    rng = Random()
    for number in range(div_ceil(size, block)):
        rng = Random(hashes[number] if number < len(hashes) else None)
        drawn += _draw(tokenizer, min(block, size - len(drawn)), rng)
    return _join(tokenizer, drawn, rng)
