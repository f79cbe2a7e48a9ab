"""A replica's server: an ordinary one, in a process that ends with this one."""

from __future__ import annotations

import asyncio
import pickle
import re
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from threading import Event, Thread
from typing import Any

import aiohttp

from minisgl.server.args import ServerArgs

_READY = re.compile(r"ready after .* at (http://\S+), try")
_FAILED = "error: "
# What it says at its start; who runs many of them has said it already.
_USUAL = ("loading ", "ready after ", "curl ")
# More than the server itself waits for its engine; see `server/info.py`.
_PATIENCE = 6.0


class ServerProcess:
    """A server, from its start on.

    url: where it is.

    Raises:
        RuntimeError: it cannot start; the text is the line in which it said why.
    """

    def __init__(self, args: ServerArgs) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "minisgl.deploy.leash"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for who holds the leash
        )
        assert self._process.stdin is not None
        self._process.stdin.write(pickle.dumps(args))
        self._process.stdin.flush()
        self.url = self._failure = ""
        self._heard = Event()
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()
        self._heard.wait()
        if not self.url:
            raise RuntimeError(self._failure)

    def _read(self) -> None:
        """Pass on what it says, and hear whether it is ready or has failed."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            text = line.decode("utf-8", "replace").rstrip()
            if not text.startswith(_USUAL):
                print(text, flush=True)
            if text.startswith(_FAILED):
                self._failure = text.removeprefix(_FAILED)
            elif not self.url and (found := _READY.fullmatch(text)):
                self.url = found[1]
                self._heard.set()
        code = self._process.wait()
        self._failure = self._failure or f"the server ended with code {code}"
        self._heard.set()

    async def health(self) -> Mapping[str, int]:
        """What its scheduler counts; nothing if it is too busy to say.

        Raises:
            RuntimeError: it is not well, or has ended.
        """
        if self._process.poll() is not None:
            raise RuntimeError(self._failure or "the server has ended")
        try:
            timeout = aiohttp.ClientTimeout(_PATIENCE)
            async with (
                aiohttp.ClientSession(timeout=timeout) as session,
                session.get(f"{self.url}/health") as answer,
            ):
                found: dict[str, Any] = await answer.json()
        except (aiohttp.ClientError, TimeoutError) as error:
            name = type(error).__name__
            raise RuntimeError(f"the server does not answer: {name}") from None
        if answer.status != 200:
            raise RuntimeError(found["error"]["message"])
        numbers: dict[str, int] = found["numbers"]
        return numbers

    async def stop(self) -> None:
        """Let go of it and wait until it has ended."""
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        await asyncio.to_thread(self._process.wait)
