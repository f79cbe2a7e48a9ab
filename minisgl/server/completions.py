"""Answers of /v1/completions and /generate: plain text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from minisgl.server.generation import Piece
from minisgl.server.protocol import OpenAICompletionRequest
from minisgl.server.respond import BaseWriter, OpenAIWriter
from minisgl.server.responses import (
    GenerateAnswer,
    TextChoice,
    TextCompletion,
    TextLogprobs,
    Usage,
)


class TextWriter(OpenAIWriter):
    """Pieces as `TextCompletion`s."""

    def __init__(self, model: str, body: OpenAICompletionRequest) -> None:
        super().__init__("cmpl", model, body.stream_options)
        self._alternatives = body.logprobs
        self._characters: dict[int, int] = {}

    @property
    def plain(self) -> bool:
        return self._alternatives is None

    def chunks(self, piece: Piece) -> Iterator[TextCompletion]:
        if piece.text or piece.logprobs or piece.finish_reason:
            yield self._completion([self._choice(piece)])

    def closing(self, usage: Usage) -> Iterator[TextCompletion]:
        if self.include_usage:
            yield self._completion([], usage)

    def whole(self, answers: Sequence[Piece], usage: Usage) -> TextCompletion:
        return self._completion([self._choice(a) for a in answers], usage)

    def _completion(
        self, choices: list[TextChoice], usage: Usage | None = None
    ) -> TextCompletion:
        head = self.head if usage is None else self.head | {"usage": usage}
        return TextCompletion(object="text_completion", choices=choices, **head)

    def _choice(self, piece: Piece) -> TextChoice:
        return TextChoice(
            index=piece.index,
            text=piece.text,
            logprobs=self._logprobs(piece),
            finish_reason=piece.finish_reason,
        )

    def _logprobs(self, piece: Piece) -> TextLogprobs | None:
        if self._alternatives is None:
            return None
        entries = piece.logprobs
        tops = [_by_text(entry["top_logprobs"]) for entry in entries]
        return TextLogprobs(
            tokens=[entry["token"] for entry in entries],
            token_logprobs=[entry["logprob"] for entry in entries],
            top_logprobs=tops if self._alternatives else None,
            text_offset=[
                self._offset(piece.index, bytes(entry["bytes"]))
                for entry in entries
            ],
        )

    def _offset(self, index: int, content: bytes) -> int:
        """Where a token begins; one in the middle of a character, where it does."""
        begun = self._characters.get(index, 0)
        # Only bytes 10xxxxxx of UTF-8 do not begin a character.
        firsts = [byte & 0b1100_0000 != 0b1000_0000 for byte in content]
        self._characters[index] = begun + sum(firsts)
        inside = bool(firsts) and not firsts[0] and begun > 0
        return begun - inside


def _by_text(tops: list[dict[str, Any]]) -> dict[str, float]:
    """The logprob of each text; of tokens that look alike, the likeliest's."""
    found: dict[str, float] = {}
    for top in tops:
        found.setdefault(top["token"], top["logprob"])
    return found


class GenerateWriter(BaseWriter):
    """Pieces as `GenerateAnswer`s."""

    def chunks(self, piece: Piece) -> Iterator[GenerateAnswer]:
        if piece.text or piece.finish_reason:
            yield self._answer(piece)

    def whole(self, answers: Sequence[Piece], usage: Usage) -> GenerateAnswer:
        return self._answer(answers[0])

    def _answer(self, piece: Piece) -> GenerateAnswer:
        return GenerateAnswer(
            text=piece.text, finish_reason=piece.finish_reason
        )
