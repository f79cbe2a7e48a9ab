"""Tokens to text, piece by piece, as they come."""

from __future__ import annotations

from dataclasses import dataclass, field

from minisgl.message import DetokenizeMsg
from minisgl.tokenizer.text import Tokenizer

# Each step decodes the last tokens of an answer only. Twelve are enough: even
# if each adds one byte and three bytes make one U+FFFD, four characters stay.
_KEEP = 12
_ENOUGH = 4
# How many numbers of aborted requests are remembered.
_ABORTED = 4096


@dataclass
class DecodeStatus:
    """What is known of an answer that is being sent.

    decoded_ids: its tokens, without those that have no text.
    decoded_str: the text of decoded_ids[surr_offset:read_offset], the window.
    read_offset: the tokens from here on wait for what follows them.
    surr_offset: the tokens before here are sent, and are not decoded again.
    sent_offset: how much of decoded_str is sent, in characters.
    """

    decoded_ids: list[int] = field(default_factory=list)
    decoded_str: str = ""
    read_offset: int = 0
    surr_offset: int = 0
    sent_offset: int = 0


def find_printable_text(text: str) -> str:
    """The part of a text that further tokens cannot change.

    A U+FFFD at the end may stand for the first bytes of a character. There is
    at most one such, for bytes that no character begins with have one each.
    """
    return text[:-1] if text.endswith("\ufffd") else text


class DetokenizeManager:
    """Turns the tokens of many requests into text.

    The pieces of a request, joined, are `tokenizer.decode` of all its tokens.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.decode_map: dict[int, DecodeStatus] = {}
        self._aborted: dict[int, None] = {}

    def detokenize(self, msgs: list[DetokenizeMsg]) -> list[str]:
        """For each message the text that has become certain with it."""
        return [self._detokenize_one(msg) for msg in msgs]

    def abort(self, uid: int) -> None:
        """Forget a request; tokens that are under way have no text any more."""
        self.decode_map.pop(uid, None)
        self._aborted[uid] = None
        if len(self._aborted) > _ABORTED:
            self._aborted.pop(next(iter(self._aborted)))

    def _detokenize_one(self, msg: DetokenizeMsg) -> str:
        """The text that this message makes certain; with the last, all of it.

        A status begins with the first message and goes with the last one.
        """
        if msg.uid in self._aborted:
            return ""
        status = self.decode_map.setdefault(msg.uid, DecodeStatus())
        if msg.finished:
            self.decode_map.pop(msg.uid)
        if self.tokenizer.is_text(msg.next_token):
            status.decoded_ids.append(msg.next_token)
        self._read(status, msg.finished)
        certain = status.decoded_str
        if not msg.finished:
            certain = find_printable_text(certain)
        piece = certain[status.sent_offset :]
        status.sent_offset += len(piece)
        self._move_window(status)
        return piece

    def _read(self, status: DecodeStatus, last: bool) -> None:
        """Decode the window, unless its end is a run of bytes that may go on."""
        ids = status.decoded_ids
        if status.read_offset == len(ids):
            return
        if last or not self.tokenizer.is_byte(ids[-1]):
            window = ids[status.surr_offset :]
            status.decoded_str = self.tokenizer.decode(window)
            status.read_offset = len(ids)

    def _move_window(self, status: DecodeStatus) -> None:
        """Let it begin later once it has twice the tokens it needs."""
        start = status.read_offset - _KEEP
        if start - status.surr_offset < _KEEP:
            return
        ids = status.decoded_ids[start : status.read_offset]
        text = self.tokenizer.decode(ids)
        # The window must reach back over what the next token can depend on: a
        # character's first bytes (a U+FFFD is one byte or more), and a space
        # at the beginning that a decoder takes away.
        if len(text.replace("\ufffd", "?").encode()) < _ENOUGH:
            return
        unsent = len(status.decoded_str) - status.sent_offset
        status.surr_offset, status.decoded_str = start, text
        status.sent_offset = len(text) - unsent
