"""Traffic of a model of which some layers see only the last tokens."""

from __future__ import annotations

from collections.abc import Sequence

from minisgl.benchmark.workload import Request


def attended(prompt: int, output: int, window: int | None) -> int:
    """Tokens that a layer reads for an answer, over all of its steps.

    prompt, output: tokens; the step of the first token reads the prompt, each
        further one a token more.
    window: most tokens that a step reads; None: as many as there are.
    """
    free = output
    if window is not None:
        # Steps that see everything; all others see a whole window.
        free = min(max(window - prompt, 0), output)
    seen = prompt * free + free * (free - 1) // 2
    return seen + (output - free) * (window or 0)


def cache_bytes(
    requests: Sequence[Request], windows: Sequence[int | None], row: int
) -> int:
    """Bytes of keys and values that the answers read.

    windows: of each layer. row: bytes of one token in one layer.
    """
    return row * sum(
        attended(len(r.prompt), r.output, window)
        for r in requests
        for window in windows
    )


def even_batch(
    weights: int, windows: Sequence[int | None], row: int, context: int
) -> int:
    """The smallest batch whose keys and values are as many bytes as the weights.

    weights: bytes that a step reads once. windows, row: as in `cache_bytes`.
    context: tokens that every request of the batch has.
    """
    tokens = sum(
        context if window is None else min(context, window)
        for window in windows
    )
    return -(-weights // (row * tokens))
