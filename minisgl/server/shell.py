"""A chat in the terminal, with the same processes behind it as the server."""

from __future__ import annotations

import asyncio
import io
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
/stats  what the engine counts
/help   this list
/exit   leave, as Ctrl-D does
Ctrl-C stops an answer. Everything else is said to the model."""
_HOW_TO_LEAVE = "Ctrl-D or /exit leaves"
# What a model says must not steer the terminal.
_CONTROLS = {*range(32), 127, *range(128, 160)} - {ord("\n"), ord("\t")}
_SHOWN = dict.fromkeys(_CONTROLS, "\N{REPLACEMENT CHARACTER}")


async def _typed_lines() -> AsyncIterator[str]:
    """Lines of a person, who can edit them and get old ones back."""
    from prompt_toolkit import PromptSession

    session: PromptSession[str] = PromptSession("> ")
    while True:
        try:
            # Ctrl-C is a key here; signals have a handler already.
            yield await session.prompt_async(handle_sigint=False)
        except KeyboardInterrupt:
            print(_HOW_TO_LEAVE)
        except EOFError:
            return


async def _piped_lines() -> AsyncIterator[str]:
    """Lines of a file or of another program."""
    loop = asyncio.get_running_loop()
    lines: asyncio.Queue[str | None] = asyncio.Queue()

    def read() -> None:
        # Without a buffer: Python cannot end while a thread waits inside one.
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
        self._params = SamplingParams(
            temperature=manager.config.shell_temperature,
            top_k=20,
            top_p=0.95,
            max_tokens=manager.config.shell_max_tokens,
        )
        self._chat: list[dict[str, str]] = []
        self._answering: asyncio.Task[None] | None = None
        self._at_terminal = sys.stdin.isatty()

    async def run(self) -> None:
        """Until there are no more lines, or one says /exit."""
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")
        if self._at_terminal:
            print("Ask something. /help lists what else there is.", flush=True)
        lines = _typed_lines() if self._at_terminal else _piped_lines()
        async for line in lines:
            text = line.strip()
            if text == "/exit":
                return
            if text.startswith("/"):
                await self._command(text)
            elif text:
                await self._ask(text)

    def interrupt(self) -> bool:
        """Stop the answer that is being given.

        False if there is none, and Ctrl-C is to end the program. A person at a
        terminal may just have been too late to stop one.
        """
        if self._answering is not None:
            self._answering.cancel()
            return True
        if self._at_terminal:
            print(_HOW_TO_LEAVE, flush=True)
        return self._at_terminal

    async def _command(self, text: str) -> None:
        if text == "/reset":
            self._chat.clear()
            answer = "forgotten"
        elif text == "/stats":
            answer = await self._stats()
        else:
            answer = _HELP if text == "/help" else f"no {text} here; see /help"
        print(answer, flush=True)

    async def _stats(self) -> str:
        try:
            numbers = await self._manager.status()
        except ApiError as error:
            return f"error: {error}"
        except TimeoutError:
            return "error: the engine does not answer"
        return ", ".join(f"{numbers[name]} {name}" for name in numbers)

    async def _ask(self, text: str) -> None:
        """One turn; a stopped answer stays in the chat as far as it went."""
        self._chat.append({"role": "user", "content": text})
        pieces: list[str] = []
        self._answering = asyncio.create_task(self._answer(pieces))
        try:
            await asyncio.wait({self._answering})
        finally:  # whoever stops the shell stops the answer
            self._answering.cancel()
        stopped = self._answering.cancelled()
        error = None if stopped else self._answering.exception()
        self._answering = None
        if error is not None:
            self._chat.pop()
            hint = "; /reset forgets the chat" if self._chat else ""
            print(f"error: {error}{hint}", flush=True)
            return
        if stopped:
            print("\n[stopped]", flush=True)
        self._chat.append({"role": "assistant", "content": "".join(pieces)})

    async def _answer(self, pieces: list[str]) -> None:
        """Print an answer and collect it; cancel it to stop it.

        Raises:
            ApiError, ValueError: there will be no answer, or no more of it.
        """
        start, made, prompt, cached = time.monotonic(), 0, 0, 0
        uid = self._manager.new_user()
        msg = TokenizeMsg(uid, [*self._chat], self._params)
        try:
            await self._manager.send_one(msg)
            async for reply in self._manager.wait_for_ack(uid):
                piece = reply.incremental_output
                print(piece.translate(_SHOWN), end="", flush=True)
                pieces.append(piece)
                made += reply.completion_tokens
                prompt += reply.prompt_tokens or 0
                cached += reply.cached_tokens or 0
                if reply.error is not None:
                    raise ValueError(reply.error)
        except asyncio.CancelledError:
            await self._manager.abort_user(uid)
            raise
        rate = made / (time.monotonic() - start)
        print(
            f"\n[{made} tokens, {rate:.1f} a second, after a chat of {prompt}, "
            f"{cached} of them cached]",
            flush=True,
        )
