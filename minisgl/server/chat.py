"""Answers of /v1/chat/completions: one message, or deltas."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from uuid import uuid4

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
    ChatToolCall,
    FinishReason,
    FunctionCall,
    FunctionDelta,
    TokenLogprob,
    ToolCallDelta,
    Usage,
)
from minisgl.server.tool_calls import CallSplitter, Part


class ChatWriter(OpenAIWriter):
    """Pieces as a `ChatCompletion` or as `ChatCompletionChunk`s."""

    def __init__(self, model: str, body: ChatCompletionRequest) -> None:
        super().__init__("chatcmpl", model, body.stream_options)
        self._with_logprobs = body.logprobs
        self._with_calls = body.tool_calls is not None
        self._opened: dict[int, CallSplitter] = {}

    @property
    def plain(self) -> bool:
        return not self._with_calls

    def chunks(self, piece: Piece) -> Iterator[ChatCompletionChunk]:
        if piece.index not in self._opened:
            self._opened[piece.index] = CallSplitter()
            opening = ChatDelta(role="assistant", content="")
            yield self._chunk(Piece(piece.index), opening)
        logprobs = piece.logprobs
        for part in self._parts(piece):
            shown = Piece(piece.index, logprobs=logprobs)
            yield self._chunk(shown, _delta(part))
            logprobs = []  # they go with the first
        if logprobs:
            shown = Piece(piece.index, logprobs=logprobs)
            yield self._chunk(shown, ChatDelta(content=""))
        if piece.finish_reason is not None:
            reason = self._reason(piece, self._opened[piece.index])
            ended = Piece(piece.index, finish_reason=reason)
            yield self._chunk(ended, ChatDelta())

    def _parts(self, piece: Piece) -> Iterator[Part]:
        if self._with_calls:
            last = piece.finish_reason is not None
            yield from self._opened[piece.index].feed(piece.text, last)
        elif piece.text:
            yield Part(piece.text)

    def _reason(self, piece: Piece, splitter: CallSplitter) -> FinishReason:
        """Calls are a reason of their own, unless one has been cut off."""
        if piece.ended == "stop" and splitter.complete:
            return "tool_calls"
        return piece.ended

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
        return ChatCompletion(
            object="chat.completion",
            choices=[self._choice(answer) for answer in answers],
            **self.head | {"usage": usage},
        )

    def _choice(self, answer: Piece) -> ChatChoice:
        splitter = self._opened[answer.index] = CallSplitter()
        content, calls = "", list[FunctionCall]()
        for part in self._parts(answer):
            if part.name is not None:
                calls.append(FunctionCall(name=part.name, arguments=""))
            elif part.call is not None:
                calls[part.call].arguments += part.text
            else:
                content += part.text
        message = ChatAnswer(role="assistant", content=content)
        if calls:
            message = ChatAnswer(
                role="assistant",
                content=content or None,
                tool_calls=[
                    ChatToolCall(id=_new_id(), type="function", function=call)
                    for call in calls
                ],
            )
        return ChatChoice(
            index=answer.index,
            message=message,
            logprobs=self._logprobs(answer),
            finish_reason=self._reason(answer, splitter),
        )

    def _logprobs(self, piece: Piece) -> ChatLogprobs | None:
        if not self._with_logprobs:
            return None
        found = [TokenLogprob.model_validate(e) for e in piece.logprobs]
        return ChatLogprobs(content=found)


def _delta(part: Part) -> ChatDelta:
    if part.call is None:
        return ChatDelta(content=part.text)
    if part.name is None:
        function = FunctionDelta(arguments=part.text)
        call = ToolCallDelta(index=part.call, function=function)
    else:
        call = ToolCallDelta(
            index=part.call,
            id=_new_id(),
            type="function",
            function=FunctionDelta(name=part.name, arguments=""),
        )
    return ChatDelta(tool_calls=[call])


def _new_id() -> str:
    return f"call_{uuid4().hex[:24]}"
