"""`python -m minisgl.deploy` as a process, with everything that Ray starts for it.

Only child processes import Ray: the checker's parent forks, which Ray does not bear.
"""

import asyncio
import json
import os
import secrets
import shutil
import signal
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import aiohttp

from minisgl.benchmark.traces import text_of
from tests.live import GREEDY, Live, read_proc, wait_until


class Deployed(Live):
    """A deployment; all its processes are known by a variable they inherit.

    mark: of the Ray cluster that it uses; with it only the command is its own.
    """

    def __init__(
        self,
        folder: Path,
        model: str | Path,
        *options: str,
        port: int = 0,
        mark: str | None = None,
    ) -> None:
        # Ray's sockets lie below it, and their paths may not be long.
        self.tmp = Path(tempfile.mkdtemp(prefix="d29-", dir="/tmp"))
        self._shared = mark is not None
        self.mark = mark or secrets.token_hex(32)
        super().__init__(
            folder,
            model,
            *options,
            port=port,
            module="minisgl.deploy.__main__",
            env={"TMPDIR": str(self.tmp), "RAY_AUTH_TOKEN": self.mark},
        )

    def pids(self) -> list[int]:
        """All living processes that it has started, directly or not."""
        return super().pids() if self._shared else pids_of(self.mark)

    def socket_dirs(self) -> list[Path]:
        return list(self.tmp.glob("*")) if self.tmp.exists() else []

    def close(self) -> None:
        super().close()
        shutil.rmtree(self.tmp, ignore_errors=True)

    def replicas(self) -> dict[str, dict[str, Any]]:
        """By name, as the router sees them."""
        with self.open("/health") as answer:
            found = json.loads(answer.read())
        return found.get("replicas", {})

    def open_ones(self) -> dict[str, str]:
        """The addresses of those that can be asked."""
        found = self.replicas()
        return {name: r["url"] for name, r in found.items() if r["open"]}

    def numbers(self, url: str) -> dict[str, int]:
        """What the scheduler of one replica counts."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"{url}/health", timeout=20) as answer:
            return json.loads(answer.read())["numbers"]

    def process_of(self, url: str) -> int:
        """The server that listens there."""
        port = int(url.rpartition(":")[2])
        wanted = f":{port:04X} 00000000:0000 0A"
        [line] = [
            line
            for line in Path("/proc/net/tcp").read_text().splitlines()
            if wanted in line
        ]
        socket = f"socket:[{line.split()[9]}]"
        for pid in self.pids():
            for handle in Path(f"/proc/{pid}/fd").glob("*"):
                with suppress(OSError):
                    if str(handle.readlink()) == socket:
                        return pid
        raise AssertionError(f"nobody listens at {url}")

    def wait_all_open(self, count: int, seconds: float = 60.0) -> float:
        return wait_until(
            lambda: len(self.open_ones()) == count,
            seconds,
            f"{count} open replicas",
        )


def pids_of(mark: str) -> list[int]:
    """All living processes that have this token."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        pid = int(folder.name)
        stat = read_proc(pid, "stat").rpartition(")")[2].split()
        ours = f"RAY_AUTH_TOKEN={mark}" in read_proc(pid, "environ")
        if ours and stat and stat[0] not in "ZX":
            found.append(pid)
    return sorted(found)


def parent(pid: int) -> int:
    return int(read_proc(pid, "stat").rpartition(")")[2].split()[1])


def kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


async def converse(
    url: str,
    model: str,
    count: int,
    turns: int = 4,
    at_once: int = 8,
    seed: int = 0,
    words: int = 24,
) -> tuple[int, int]:
    """Hold conversations; how many tokens their prompts had, and were cached.

    Each turn repeats all before it, adds a question, and waits for an answer.
    """
    rng, gate = Random(seed), asyncio.Semaphore(at_once)
    prompt = cached = 0

    async def talk(questions: list[str]) -> None:
        async with gate:
            await turns_of(questions)

    async def turns_of(questions: list[str]) -> None:
        nonlocal prompt, cached
        messages: list[dict[str, str]] = []
        for question in questions:
            messages.append({"role": "user", "content": question})
            body = {"model": model, "messages": messages, "max_tokens": 4}
            place = f"{url}/v1/chat/completions"
            async with session.post(place, json=body | GREEDY) as answer:
                made = await answer.json()
                assert answer.status == 200, made
            usage = made["usage"]
            prompt += usage["prompt_tokens"]
            cached += usage["prompt_tokens_details"]["cached_tokens"]
            text = made["choices"][0]["message"]["content"]
            messages.append({"role": "assistant", "content": text})

    talks = [
        [text_of(None, words, rng) for _ in range(turns)] for _ in range(count)
    ]
    async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as group:
        for questions in talks:
            group.create_task(talk(questions))
    return prompt, cached


@contextmanager
def routed(urls: dict[str, str], policy: Any) -> Iterator[str]:
    """Another router before the same servers, in a thread of this process."""
    import threading

    import uvicorn

    from minisgl.deploy import fleet as fleets
    from minisgl.deploy.fleet import Beat, Fleet
    from minisgl.deploy.forward import Forwarder
    from minisgl.deploy.router import create_router
    from minisgl.server.listener import base_url, listen

    fleet = Fleet(policy)
    app = create_router(fleet, Forwarder(fleet), "")
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    listener = listen("127.0.0.1", 0)

    async def serve() -> None:
        with mock.patch.object(fleets, "LEASE", 600.0):
            for name, url in urls.items():
                fleet.beat(Beat(name, url, 16_000))
        await server.serve([listener])

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        yield base_url(listener)
    finally:
        server.should_exit = True
        thread.join()
