"""Passes requests on to replicas, and their answers back."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import aiohttp
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from yarl import URL

from minisgl.deploy.blocks import prompt_blocks
from minisgl.deploy.fleet import Fleet, Replica
from minisgl.server.errors import ApiError, ErrorResponse
from minisgl.server.streams import DONE, ClientGone, event, unless_gone
from minisgl.utils import init_logger

logger = init_logger(__name__)
T = TypeVar("T")

# What concerns one connection only (RFC 9110, section 7.6.1), not the message.
_HOP = {"connection", "keep-alive", "te", "trailer", "transfer-encoding"}
_HOP |= {"upgrade", "proxy-authenticate", "proxy-authorization"}
_CONNECT = 5.0
_UNREACHED = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
# Seconds to keep an idle connection: less than uvicorn's 5, so that it is not
# closed over there in the moment in which it is used again.
_KEEP = 2.0
_BUSY = "no replica can answer now; try again in a moment"
_MOST_LOSSES = 2
"""Replicas that one request can take along. Any may end while it answers, but
what two have died of would be the end of all."""

_LOST = "the replica that was answering is gone; ask again"


class ReplicaLost(Exception):
    """It did not answer, and nobody has seen anything of an answer.

    began: it may have read the request, so that it may have died of it.
    """

    def __init__(self, reason: str, began: bool) -> None:
        super().__init__(reason)
        self.began = began


class Forwarder:
    """The application that has others answer.

    A request goes to another replica as long as its client has been told
    nothing; after that the answer ends with an error.

    active: requests that are being answered.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._session: aiohttp.ClientSession | None = None
        self.active = 0

    async def __call__(
        self, scope: Scope, receive: Receive, send: Send
    ) -> None:
        request = Request(scope, receive)
        self.active += 1
        try:
            body = await request.body()
            await unless_gone(receive, self._answer(request, body, send))
        except (ClientDisconnect, ClientGone):
            pass
        finally:
            self.active -= 1

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()

    async def _answer(self, request: Request, body: bytes, send: Send) -> None:
        blocks, tried, losses = prompt_blocks(body), set[str](), 0
        while losses < _MOST_LOSSES:
            replica = self._fleet.pick(blocks, tried)
            if replica is None:
                break
            tried.add(replica.beat.name)
            replica.in_flight += 1
            try:
                return await self._ask(replica, request, body, send)
            except ReplicaLost as error:
                replica.suspected = True
                losses += error.began
                logger.warning(f"replica {replica.beat.name} lost: {error}")
            finally:
                replica.in_flight -= 1
        why = _LOST if losses else _BUSY
        refusal = ApiError(503, why).response({"retry-after": "2"})
        await refusal(request.scope, request.receive, send)

    async def _ask(
        self, replica: Replica, request: Request, body: bytes, send: Send
    ) -> None:
        gone = asyncio.ensure_future(replica.gone.wait())
        try:
            opening = self._open(replica, request, body)
            upstream = await _unless(gone, opening)
            async with upstream:
                if upstream.status == 503:
                    raise ReplicaLost("it says 503", began=False)
                if upstream.content_type == "text/event-stream":
                    await _relay(upstream, gone, replica, send)
                else:
                    content = await _unless(gone, upstream.read())
                    answer = Response(content, upstream.status)
                    answer.raw_headers = _headers(upstream, replica)
                    await answer(request.scope, request.receive, send)
        except (aiohttp.ClientError, TimeoutError) as error:
            reason = f"{type(error).__name__}: {error}"
            began = not isinstance(error, _UNREACHED)
            raise ReplicaLost(reason, began) from None
        finally:
            gone.cancel()

    async def _open(
        self, replica: Replica, request: Request, body: bytes
    ) -> aiohttp.ClientResponse:
        """Send the request; returns when the first byte of an answer is here."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=0, keepalive_timeout=_KEEP
                ),
                timeout=aiohttp.ClientTimeout(None, sock_connect=_CONNECT),
                cookie_jar=aiohttp.DummyCookieJar(),
                skip_auto_headers=["accept", "accept-encoding", "user-agent"],
                auto_decompress=False,
            )
        path: bytes = request.scope["raw_path"]
        url = replica.beat.url + path.decode("ascii")
        if request.url.query:
            url += f"?{request.url.query}"
        skip = {*_HOP, "host", "content-length"}
        kept = [(k, v) for k, v in request.headers.items() if k not in skip]
        return await self._session.request(
            request.method,
            URL(url, encoded=True),
            headers=kept,
            data=body or None,
            allow_redirects=False,
        )


async def _relay(
    upstream: aiohttp.ClientResponse,
    gone: asyncio.Future[Any],
    replica: Replica,
    send: Send,
) -> None:
    """Pass a stream on, event by event, and end it if its source ends."""
    headers = _headers(upstream, replica)
    start = {"type": "http.response.start", "status": upstream.status}
    await send(start | {"headers": headers})
    part = {"type": "http.response.body", "more_body": True}
    tail = b""
    try:
        while chunk := await _unless(gone, upstream.content.readany()):
            # Whole events only: what follows half of one cannot be read.
            whole, end, tail = (tail + chunk).rpartition(b"\n\n")
            if end:
                await send(part | {"body": whole + end})
    except (aiohttp.ClientError, ReplicaLost):
        replica.suspected = True
        info = ApiError(503, _LOST).info
        tail = (event(ErrorResponse(error=info)) + DONE).encode()
    await send({"type": "http.response.body", "body": tail})


async def _unless(gone: asyncio.Future[Any], work: Coroutine[Any, Any, T]) -> T:
    """What `work` returns, unless the replica is gone before.

    Raises:
        ReplicaLost: it is.
    """
    doing = asyncio.ensure_future(work)
    try:
        await asyncio.wait({doing, gone}, return_when="FIRST_COMPLETED")
        if doing.done():
            return doing.result()
        raise ReplicaLost("it has said nothing for too long", began=True)
    finally:
        doing.cancel()


def _headers(
    upstream: aiohttp.ClientResponse, replica: Replica
) -> list[tuple[bytes, bytes]]:
    kept = [(k.lower(), v) for k, v in upstream.raw_headers]
    kept = [(k, v) for k, v in kept if k.decode("latin-1") not in _HOP]
    return [*kept, (b"x-minisgl-replica", replica.beat.name.encode())]
