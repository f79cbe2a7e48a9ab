"""A chat in the terminal, beside the same processes as the server's."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from threading import Thread

from minisgl.message import TokenizeMsg
from minisgl.sampling_params import SamplingParams
from minisgl.server.errors import ApiError
from minisgl.server.frontend import FrontendManager

_HELP = """\
/reset  forget what was said
/stats  what the engine is doing
/help   this list
/exit   leave, as Ctrl-D does
Ctrl-C stops an answer. All else is sent to the model."""
_PARAMS = SamplingParams(temperature=0.6, top_k=20, top_p=0.95, max_tokens=2048)


async def _typed_lines() -> AsyncIterator[str]:
    """Lines from a person at a terminal, who can edit them and find old ones."""
    from prompt_toolkit import PromptSession

    session: PromptSession[str] = PromptSession("> ")
    while True:
        try:
            # Ctrl-C is a key here. A signal from elsewhere is not the prompt's.
            yield await session.prompt_async(handle_sigint=False)
        except KeyboardInterrupt:
            print("/exit or Ctrl-D leaves")
        except EOFError:
            return


async def _piped_lines() -> AsyncIterator[str]:
    """Lines from a file or another program."""
    loop = asyncio.get_running_loop()
    lines: asyncio.Queue[str | None] = asyncio.Queue()

    def read() -> None:
        # Unbuffered: who waits in a buffer holds its lock, and Python cannot end.
        with open(0, "rb", buffering=0, closefd=False) as raw:
            for line in raw:
                text = line.decode("utf-8", "replace")
                loop.call_soon_threadsafe(lines.put_nowait, text)
        loop.call_soon_threadsafe(lines.put_nowait, None)

    Thread(target=read, daemon=True).start()
    while (line := await lines.get()) is not None:
        yield line


class Shell:
    """Reads lines, sends the chat so far, prints the answer as it comes."""

    def __init__(self, manager: FrontendManager) -> None:
        self._manager = manager
        self._chat: list[dict[str, str]] = []
        self._answering: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Until there are no more lines, or one says /exit."""
        terminal = sys.stdin.isatty()
        if terminal:
            print("Ask something; /help lists what else you can say.")
        async for line in _typed_lines() if terminal else _piped_lines():
            text = line.strip()
            if text == "/exit":
                return
            if text.startswith("/"):
                await self._command(text)
            elif text:
                self._answering = asyncio.create_task(self._answer(text))
                await asyncio.wait({self._answering})
                self._answering = None

    def interrupt(self) -> bool:
        """Stop the answer that is being given; whether there was one."""
        if self._answering is None:
            return False
        self._answering.cancel()
        return True

    async def _command(self, text: str) -> None:
        if text == "/reset":
            self._chat.clear()
            print("forgotten")
        elif text == "/stats":
            await self._stats()
        else:
            if text != "/help":
                print(f"there is no {text}")
            print(_HELP, flush=True)

    async def _stats(self) -> None:
        try:
            numbers = await self._manager.status()
        except (ApiError, TimeoutError) as error:
            print(f"error: {error or 'the engine does not answer'}")
            return
        shown = (f"{name} {value}" for name, value in numbers.items())
        print(", ".join(shown), flush=True)

    async def _answer(self, text: str) -> None:
        """One turn; what was said stays in the chat, also if it was stopped."""
        manager, start = self._manager, time.monotonic()
        self._chat.append({"role": "user", "content": text})
        pieces, tokens, prompt, cached = [], 0, 0, 0
        uid = manager.new_user()
        try:
            await manager.send_one(TokenizeMsg(uid, [*self._chat], _PARAMS))
            async for reply in manager.wait_for_ack(uid):
                print(reply.incremental_output, end="", flush=True)
                pieces.append(reply.incremental_output)
                tokens += reply.completion_tokens
                prompt += reply.prompt_tokens or 0
                cached += reply.cached_tokens or 0
                if reply.error is not None:
                    raise ValueError(reply.error)
        except asyncio.CancelledError:
            await manager.abort_user(uid)
            print(" [stopped]", end="")
        except (ApiError, ValueError) as error:
            self._chat.pop()
            print(f"error: {error}", flush=True)
            return
        self._chat.append({"role": "assistant", "content": "".join(pieces)})
        rate = tokens / (time.monotonic() - start)
        print(
            f"\n[{tokens} tokens, {rate:.1f} a second; the chat had {prompt}, "
            f"{cached} of them cached]",
            flush=True,
        )
