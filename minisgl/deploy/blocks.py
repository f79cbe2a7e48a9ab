"""What a request begins with, as numbers that can be compared."""

from __future__ import annotations

import json
from collections.abc import Sequence

BLOCK = 64
"""Characters of a block."""
TOKENS_A_BLOCK = 16
"""About how many tokens these are: as in English, a token for 4 characters."""
MOST_BLOCKS = 4096
"""Nobody's route depends on what comes after so many."""

Blocks = Sequence[int]
"""Of each block a number for everything up to its end: two requests that have
the i-th in common have all before it in common, too."""


def prompt_blocks(body: bytes) -> list[int]:
    """The blocks of the prompt in an HTTP body; none if it has no prompt.

    Only whole blocks count. A later turn of a chat begins with all blocks of
    its earlier turns, for it repeats them word for word. Whether the request
    is valid is not looked at; that is for the replica to say.
    """
    try:
        fields = json.loads(body)
        if not isinstance(fields, dict):
            return []
        prompt = fields.get("messages", fields.get("prompt"))
        if prompt is None:
            return []
        text = json.dumps(prompt, ensure_ascii=False, sort_keys=True)
    except (ValueError, RecursionError):
        return []
    found: list[int] = []
    number = 0
    whole = len(text) - len(text) % BLOCK
    for begin in range(0, min(whole, MOST_BLOCKS * BLOCK), BLOCK):
        # A collision sends a request to a replica that knows nothing of it.
        number = hash((number, text[begin : begin + BLOCK]))
        found.append(number)
    return found
