"""Server-sent events, and clients that go away before the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from typing import TypeVar

from pydantic import BaseModel
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from minisgl.server.generation import Generation

T = TypeVar("T")

DONE = "data: [DONE]\n\n"
"""The last event of every stream."""


class ClientGone(Exception):
    """Nobody is there to answer to."""


def event(data: BaseModel) -> str:
    """An event, with the fields that were set.

    All beyond ASCII is escaped: some clients take U+2028 and others of its kind
    for the end of a line.
    """
    text = data.model_dump_json(exclude_unset=True, ensure_ascii=True)
    return f"data: {text}\n\n"


async def unless_gone(receive: Receive, work: Coroutine[None, None, T]) -> T:
    """What `work` returns; it is cancelled when the client disconnects.

    The request's body must have been read: then all that can still be received
    is that the client has gone.

    Raises:
        ClientGone: it has.
    """
    doing = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_disconnect(receive))
    try:
        await asyncio.wait({doing, watching}, return_when="FIRST_COMPLETED")
        if doing.done():
            return doing.result()
        raise ClientGone
    finally:
        for task in (doing, watching):
            task.cancel()
        await asyncio.gather(doing, watching, return_exceptions=True)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(StreamingResponse):
    """Sends the events of a generation; ends it when the client goes."""

    media_type = "text/event-stream"

    def __init__(
        self, generation: Generation, events: AsyncIterator[str]
    ) -> None:
        # A proxy that collects a stream before it passes it on defeats it.
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(events, headers=headers)
        self._generation = generation

    async def __call__(
        self, scope: Scope, receive: Receive, send: Send
    ) -> None:
        # Not the parent's: with newer ASGI servers it would notice only at the
        # next token that nobody listens.
        try:
            await unless_gone(receive, self.stream_response(send))
        except ClientGone:
            pass
        finally:
            self._generation.close()
