"""A router and replicas that do as they are told, all in one event loop.

A fake replica answers /v1/completions with the pieces that a test puts into its queue;
`CUT` in their place ends the connection in the middle, as a process that is killed
does.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any
from unittest import mock

import aiohttp
import uvicorn
from aiohttp import web

from minisgl.deploy import fleet as fleets
from minisgl.deploy.fleet import Beat, Fleet
from minisgl.deploy.forward import Forwarder
from minisgl.deploy.policy import LeastLoadedPolicy, Policy
from minisgl.deploy.router import create_router
from minisgl.server.listener import base_url, listen

CUT = None


class Fake:
    """A replica. What it was asked is in `asked`; `status` 503 refuses all,
    `packed` is what all get."""

    def __init__(self, name: str) -> None:
        self.name, self.status, self.packed = name, 200, b""
        self.pieces: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.asked: list[tuple[str, str, dict[str, str], bytes]] = []
        self.left = asyncio.Event()  # a client went before the end
        self.url = ""
        self._runner: web.AppRunner | None = None

    async def start(self) -> "Fake":
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self.answer)
        self._runner = web.AppRunner(
            app, handler_cancellation=True, shutdown_timeout=0.1
        )
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        assert site._server is not None
        port = site._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        return self

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def beat(self, **changes: Any) -> Beat:
        return Beat(self.name, self.url, 16_000)._replace(**changes)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        headers = {k.lower(): v for k, v in request.headers.items()}
        self.asked.append((request.method, request.raw_path, headers, body))
        if self.status != 200:
            shown = {"error": {"message": f"says {self.name}"}}
            return web.json_response(shown, status=self.status)
        if self.packed:
            packing = {"content-encoding": "gzip"}
            return web.Response(body=self.packed, headers=packing)
        if request.path != "/v1/completions":
            return web.Response(text=f"{self.name}: {request.raw_path}")
        try:
            return await self._pieces(request, b"stream" in body)
        except asyncio.CancelledError:
            self.left.set()
            raise

    async def _pieces(
        self, request: web.Request, stream: bool
    ) -> web.StreamResponse:
        piece = await self.pieces.get()
        kind = "text/event-stream" if stream else "application/json"
        response = web.StreamResponse(headers={"content-type": kind})
        if piece is not CUT:
            await response.prepare(request)
        while piece:
            await response.write(piece)
            piece = await self.pieces.get()
        if piece is CUT:
            assert request.transport is not None
            request.transport.abort()
        return response


class Scene:
    """A router before `count` fakes; `url` is that of the router."""

    def __init__(self, policy: Policy) -> None:
        self.fleet = Fleet(policy)
        self.forwarder = Forwarder(self.fleet)
        self.fakes: list[Fake] = []
        self.url = ""
        self.session: aiohttp.ClientSession

    async def post(
        self, path: str = "/v1/completions", **fields: Any
    ) -> tuple[int, Mapping[str, str], bytes]:
        body = json.dumps(fields).encode()
        async with self.session.post(self.url + path, data=body) as answer:
            return answer.status, answer.headers, await answer.read()

    @asynccontextmanager
    async def stream(self) -> AsyncIterator[aiohttp.ClientResponse]:
        body = {"prompt": "x", "stream": True}
        place = f"{self.url}/v1/completions"
        async with self.session.post(place, json=body) as answer:
            yield answer

    async def busy(self) -> Fake:
        """The fake that has the one request that is in flight."""
        while True:
            for fake in self.fakes:
                if self.fleet.replicas[fake.name].in_flight:
                    return fake
            await asyncio.sleep(0.01)


def play(
    scenario: Callable[[Scene], Coroutine[Any, Any, None]],
    count: int = 2,
    lease: float = 60.0,
    policy: Policy | None = None,
    root_path: str = "",
) -> None:
    """Run a scenario; it may take ten seconds."""

    async def run() -> None:
        scene = Scene(policy or LeastLoadedPolicy())
        app = create_router(scene.fleet, scene.forwarder, root_path)
        config = uvicorn.Config(app, log_level="warning")
        server = uvicorn.Server(config)
        listener = listen("127.0.0.1", 0)
        serving = asyncio.create_task(server.serve([listener]))
        scene.url = base_url(listener)
        scene.fakes = [await Fake(f"r{i}").start() for i in range(count)]
        for fake in scene.fakes:
            scene.fleet.beat(fake.beat())
        try:
            async with aiohttp.ClientSession() as scene.session:
                await asyncio.wait_for(scenario(scene), 10)
        finally:
            server.should_exit = True
            for fake in scene.fakes:
                await fake.stop()
            await serving

    with mock.patch.object(fleets, "LEASE", lease):
        asyncio.run(run())
