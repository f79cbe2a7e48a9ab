"""Answers of /v1/chat/completions: one message, or deltas."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from minisgl.server.chat_request import ChatCompletionRequest
from minisgl.server.generation import Piece
from minisgl.server.respond import OpenAIWriter
from minisgl.server.responses import (
    ChatAnswer,
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChatDelta,
    ChatLogprobs,
    TokenLogprob,
    Usage,
)


class ChatWriter(OpenAIWriter):
    """Pieces as a `ChatCompletion` or as `ChatCompletionChunk`s."""

    def __init__(self, model: str, body: ChatCompletionRequest) -> None:
        super().__init__("chatcmpl", model, body.stream_options)
        self._with_logprobs = body.logprobs
        self._opened: set[int] = set()

    @property
    def plain(self) -> bool:
        return True

    def chunks(self, piece: Piece) -> Iterator[ChatCompletionChunk]:
        if piece.index not in self._opened:
            self._opened.add(piece.index)
            opening = ChatDelta(role="assistant", content="")
            yield self._chunk(Piece(piece.index), opening)
        if piece.text or piece.logprobs:
            shown = Piece(piece.index, piece.text, piece.logprobs)
            yield self._chunk(shown, ChatDelta(content=piece.text))
        if piece.finish_reason is not None:
            ended = Piece(piece.index, finish_reason=piece.finish_reason)
            yield self._chunk(ended, ChatDelta())

    def _chunk(self, piece: Piece, delta: ChatDelta) -> ChatCompletionChunk:
        choice = ChatChunkChoice(
            index=piece.index,
            delta=delta,
            logprobs=self._logprobs(piece) if piece.logprobs else None,
            finish_reason=piece.finish_reason,
        )
        return ChatCompletionChunk(
            object="chat.completion.chunk", choices=[choice], **self.head
        )

    def closing(self, usage: Usage) -> Iterator[ChatCompletionChunk]:
        if self.include_usage:
            yield ChatCompletionChunk(
                object="chat.completion.chunk",
                choices=[],
                **self.head | {"usage": usage},
            )

    def whole(self, answers: Sequence[Piece], usage: Usage) -> ChatCompletion:
        choices = [
            ChatChoice(
                index=answer.index,
                message=ChatAnswer(role="assistant", content=answer.text),
                logprobs=self._logprobs(answer),
                finish_reason=answer.ended,
            )
            for answer in answers
        ]
        return ChatCompletion(
            object="chat.completion",
            choices=choices,
            **self.head | {"usage": usage},
        )

    def _logprobs(self, piece: Piece) -> ChatLogprobs | None:
        if not self._with_logprobs:
            return None
        found = [TokenLogprob.model_validate(e) for e in piece.logprobs]
        return ChatLogprobs(content=found)
