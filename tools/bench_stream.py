"""What a token of a stream costs: CPU time of the HTTP process and of its client.

python tools/bench_stream.py

The engine is a stand-in that gives every request a token at a time, all alike, so
that nothing else is measured. Server and client are a process each.
"""

from __future__ import annotations

import asyncio
import multiprocessing as mp
import os
import platform
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any
from unittest.mock import patch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:] = [
    p for p in sys.path if Path(p or ".").resolve() != ROOT / "tools"
]
sys.path.insert(0, str(ROOT))

import typer  # noqa: E402
from openai import AsyncOpenAI, DefaultAioHttpClient  # noqa: E402

from minisgl.benchmark.client import (  # noqa: E402
    benchmark_one_batch,
    get_model_name,
)
from minisgl.message import (  # noqa: E402
    BaseFrontendMsg,
    BatchFrontendMsg,
    UserReply,
)
from minisgl.server.api_server import create_app  # noqa: E402
from minisgl.server.args import parse_args  # noqa: E402
from minisgl.server.frontend import FrontendManager  # noqa: E402
from minisgl.server.gate import HttpServer  # noqa: E402
from minisgl.server.listener import listen  # noqa: E402
from minisgl.server.respond import BaseWriter, OpenAIWriter  # noqa: E402
from tools.models import model_path  # noqa: E402


class StandIn:
    """Both queues of an engine: takes requests, and answers them all together.

    requests: how many it waits for. tokens: of every answer. pause: seconds from
        one token to the next.
    """

    def __init__(self, requests: int, tokens: int, pause: float) -> None:
        self._requests, self._tokens, self._pause = requests, tokens, pause
        self._uids: list[int] = []
        self._replies: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.began = 0.0

    async def put(self, msg: Any) -> None:
        self._uids.append(msg.uid)
        if len(self._uids) == self._requests:
            self._answering = asyncio.create_task(self._answer())

    async def get(self) -> BaseFrontendMsg:
        return BaseFrontendMsg.decoder(await self._replies.get())

    async def _answer(self) -> None:
        batches = [
            BaseFrontendMsg.encoder(
                BatchFrontendMsg([self._reply(uid, n) for uid in self._uids])
            )
            for n in range(self._tokens)
        ]
        self.began = time.process_time()
        for batch in batches:
            self._replies.put_nowait(batch)
            await asyncio.sleep(self._pause)

    def _reply(self, uid: int, number: int) -> UserReply:
        last = number == self._tokens - 1
        reason = "length" if last else None
        reply = UserReply(uid, f" word{number}", last, reason)
        reply.completion_tokens = 1
        if number == 0:
            reply.prompt_tokens, reply.cached_tokens = 1, 0
        return reply


Load = tuple[int, int, float]
"""What a `StandIn` is told."""


def serve(load: Load, anew: bool, link: Any) -> None:
    """Until somebody writes to `link`, which gets the port first, and then the
    seconds of CPU that it took.

    anew: make every event as a whole.
    """

    async def run() -> float:
        args, _ = parse_args(["--model", str(model_path("qwen3-tiny"))], False)
        engine: Any = StandIn(*load)
        app = create_app(FrontendManager(args, engine, engine))
        server, listener = HttpServer(app, "warning"), listen("127.0.0.1", 0)
        serving = asyncio.create_task(server.serve([listener]))
        link.send(listener.getsockname()[1])
        await asyncio.to_thread(link.recv)
        seconds: float = time.process_time() - engine.began
        server.should_exit = True
        await serving
        return seconds

    whole = patch.object(OpenAIWriter, "events", BaseWriter.events)
    with whole if anew else nullcontext():
        link.send(asyncio.run(run()))


def measure(load: Load, aio: bool, anew: bool) -> tuple[float, float]:
    """Microseconds a token, of the server and of the client."""
    requests, tokens, _ = load
    ours, theirs = mp.Pipe()
    child = mp.get_context("spawn").Process(
        target=serve, args=(load, anew, theirs), daemon=True
    )
    child.start()
    client = asyncio.run(_ask(ours.recv(), requests, tokens, aio))
    ours.send("enough")
    count = requests * tokens / 1e6
    server: float = ours.recv()
    return server / count, client / count


async def _ask(port: int, requests: int, tokens: int, aio: bool) -> float:
    http: Any = DefaultAioHttpClient() if aio else None
    url = f"http://127.0.0.1:{port}/v1"
    async with AsyncOpenAI(
        base_url=url, api_key="none", http_client=http
    ) as client:
        model = await get_model_name(client)
        began = time.process_time()
        await benchmark_one_batch(
            client, ["hello"] * requests, tokens, model, pbar=False
        )
        return time.process_time() - began


def main(
    requests: Annotated[int, typer.Option(min=1, help="at once")] = 40,
    tokens: Annotated[int, typer.Option(min=2, help="of an answer")] = 400,
    pause: Annotated[float, typer.Option(help="seconds between two")] = 0.01,
    rounds: Annotated[int, typer.Option(min=1, help="the least counts")] = 3,
) -> None:
    """Print CPU time a token with what saves it, and without."""
    print(f"{os.cpu_count()} cores, Python {platform.python_version()}")
    for label, aio, anew in (
        ("every event made anew, httpx", False, True),
        ("all but its text made once, httpx", False, False),
        ("all but its text made once, aiohttp", True, False),
    ):
        load = requests, tokens, pause
        found = [measure(load, aio, anew) for _ in range(rounds)]
        server, client = map(min, zip(*found, strict=True))
        print(f"{label:37}server {server:4.0f} us, client {client:4.0f} us")


if __name__ == "__main__":
    typer.run(main)
