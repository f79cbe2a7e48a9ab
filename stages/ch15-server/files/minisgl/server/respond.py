"""From the pieces of a generation to one body, or to a stream of events."""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any
from uuid import uuid4

from fastapi import Request
from pydantic import BaseModel
from starlette.responses import Response

from minisgl.server.errors import ErrorResponse
from minisgl.server.generation import Generation, Piece, Tokens
from minisgl.server.protocol import StreamOptions
from minisgl.server.responses import PromptDetails, Usage
from minisgl.server.streams import (
    DONE,
    ClientGone,
    EventStream,
    event,
    unless_gone,
)

_TEXT = "\uffff"
"""Stands for any text; no character is written like this one."""


class BaseWriter(ABC):
    """Gives the pieces of one request the form of an endpoint."""

    @abstractmethod
    def chunks(self, piece: Piece) -> Iterator[BaseModel]:
        """The events for a piece; it may have nothing new to show."""

    @abstractmethod
    def whole(self, answers: Sequence[Piece], usage: Usage) -> BaseModel:
        """The body for all answers, in their order."""

    def events(self, piece: Piece) -> Iterator[str]:
        """The events for a piece as they are sent."""
        return map(event, self.chunks(piece))

    def closing(self, usage: Usage) -> Iterator[BaseModel]:
        """The events after the last piece, if it had no error."""
        return iter(())


class OpenAIWriter(BaseWriter):
    """What OpenAI's endpoints have in common."""

    def __init__(
        self, prefix: str, model: str, options: StreamOptions | None
    ) -> None:
        self._head: dict[str, Any] = {
            "id": f"{prefix}-{uuid4().hex}",
            "created": int(time.time()),
            "model": model,
        }
        self.include_usage = options is not None and options.include_usage
        self._around: dict[int, tuple[str, str]] = {}

    @property
    @abstractmethod
    def plain(self) -> bool:
        """Whether pieces with a text, and nothing else, differ in that only."""

    def events(self, piece: Piece) -> Iterator[str]:
        """All is written once for an answer but its text: events are many."""
        around = self._around.get(piece.index)
        if piece.only_text and around is not None:
            yield json.dumps(piece.text).join(around)
            return
        yield from super().events(piece)
        if self.plain and around is None:
            [chunk] = self.chunks(Piece(piece.index, _TEXT))
            before, _, after = event(chunk).rpartition(json.dumps(_TEXT))
            self._around[piece.index] = before, after

    @property
    def head(self) -> dict[str, Any]:
        """Fields of every event; usage is null, if asked for, until the end."""
        return self._head | ({"usage": None} if self.include_usage else {})


async def respond(
    request: Request, generation: Generation, writer: BaseWriter, stream: bool
) -> Response:
    """Run a generation for a client that may leave at any moment.

    Nothing is sent before every prompt has had its first reply, so that what is
    wrong with a request still has a status of its own.

    Raises:
        ApiError: it failed before anything was sent.
    """
    streaming = False
    try:
        await unless_gone(request.receive, generation.begin())
        if stream:
            streaming = True
            return EventStream(generation, _events(generation, writer))
        answers = await unless_gone(request.receive, _collect(generation))
    except ClientGone:
        return Response(status_code=499)  # which nobody will see
    finally:
        if not streaming:
            generation.close()
    body = writer.whole(answers, usage(generation.tokens))
    return Response(
        body.model_dump_json(exclude_unset=True), media_type="application/json"
    )


async def _collect(generation: Generation) -> list[Piece]:
    answers: dict[int, Piece] = {}
    async for piece in generation.pieces():
        if piece.error is not None:
            raise piece.error
        answer = answers.setdefault(piece.index, Piece(piece.index))
        answer.text += piece.text
        answer.logprobs += piece.logprobs
        answer.finish_reason = piece.finish_reason
    return [answers[index] for index in sorted(answers)]


async def _events(
    generation: Generation, writer: BaseWriter
) -> AsyncIterator[str]:
    async for piece in generation.pieces():
        for text in writer.events(piece):
            yield text
        if piece.error is not None:
            yield event(ErrorResponse(error=piece.error.info))
            break
    else:
        for chunk in writer.closing(usage(generation.tokens)):
            yield event(chunk)
    yield DONE


def usage(tokens: Tokens) -> Usage:
    """The same numbers as clients expect them."""
    return Usage(
        prompt_tokens=tokens.prompt,
        completion_tokens=tokens.completion,
        total_tokens=tokens.prompt + tokens.completion,
        prompt_tokens_details=PromptDetails(cached_tokens=tokens.cached),
    )
