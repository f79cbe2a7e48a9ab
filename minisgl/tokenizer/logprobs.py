"""Log-probabilities for a client: of texts and bytes, not of ids."""

from __future__ import annotations

from typing import Any

from minisgl.message import DetokenizeMsg
from minisgl.tokenizer.text import Tokenizer


def _byte_of_letter() -> dict[str, int]:
    """What byte each letter of a byte-level vocabulary stands for.

    Printable bytes stand for themselves, the others are the letters from U+0100
    on, in order (the table of GPT-2).
    """
    own = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in own]
    letters = {chr(byte): byte for byte in own}
    return letters | {chr(256 + i): byte for i, byte in enumerate(rest)}


_BYTES = _byte_of_letter()


class LogprobFormatter:
    """Makes the `logprobs` of a reply out of those of a token.

    A token need not be a whole character, so beside its text it has its bytes.
    The bytes of all tokens of an answer, joined, are the UTF-8 of its text (if
    the model wrote text; else they are what it wrote).
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._byte_level = tokenizer.decode_tokens(["\u0120"]) == " "

    def format(
        self, msg: DetokenizeMsg, first: bool
    ) -> list[dict[str, Any]] | None:
        """One dict, as `UserReply` says; None if the token has none.

        first: no token before it has text. Some decoders take a space away
            there.
        """
        found = msg.logprobs
        if found is None:
            return None
        chosen = self._entry(msg.next_token, found.logprob, first)
        pairs = zip(found.top_ids, found.top_logprobs, strict=True)
        chosen["top_logprobs"] = [self._entry(*pair, first) for pair in pairs]
        return [chosen]

    def _entry(self, token: int, logprob: float, first: bool) -> dict[str, Any]:
        """What is known of one token; special ones have a name, but no bytes."""
        raw = self.bytes_of(token, first)
        text = raw.decode("utf-8", errors="replace")
        if not self._tokenizer.is_text(token):
            text = self._tokenizer.token(token) or ""
        return {"token": text, "logprob": logprob, "bytes": [*raw]}

    def bytes_of(self, token: int, first: bool) -> bytes:
        """What a token adds to the text, as bytes."""
        tokenizer = self._tokenizer
        name = tokenizer.token(token)
        if name is None or not tokenizer.is_text(token):
            return b""
        if self._byte_level:
            if all(letter in _BYTES for letter in name):
                return bytes(_BYTES[letter] for letter in name)
            return name.encode()
        alone = tokenizer.decode_tokens([name])
        if tokenizer.is_byte(token) and alone:
            return bytes([int(name[3:5], 16)])
        if first:
            return alone.encode()
        # Behind another token it keeps its space.
        both = tokenizer.decode_tokens(["a", name])
        return both.removeprefix("a").encode()
