"""A server on a free port whose engine is a script: the real queues, no model."""

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import httpx2
import uvicorn

from minisgl.message import (
    AbortMsg,
    BaseFrontendMsg,
    BaseTokenizerMsg,
    BatchFrontendMsg,
    StatusMsg,
    StatusReply,
    TokenizeMsg,
    UserReply,
)
from minisgl.server.api_server import connect, create_app
from minisgl.server.frontend import FrontendManager
from minisgl.utils import ZmqPullQueue, ZmqPushQueue

NUMBERS = {
    "running": 1,
    "waiting": 2,
    "free_pages": 3,
    "cached_pages": 4,
    "total_pages": 12,
}


@dataclass
class Script:
    """What becomes of a prompt: a token for each piece, then an end token.

    fail_at: the number of the token in whose place it fails, as `fail` says.
    pace: seconds before each token.
    """

    pieces: list[str] = field(
        default_factory=lambda: [" one", " two", " three"]
    )
    fail_at: int | None = None
    fail: str = "error"
    error: str = "the fake engine failed"
    pace: float = 0.0


class FakeEngine(threading.Thread):
    """Stands for tokenizer, scheduler and detokenizer.

    A prompt's script is found by its text (of a chat, the last turn's).
    log: ("ask" | "abort" | "reply", uid), in order.
    """

    def __init__(self, config: Any) -> None:
        super().__init__(daemon=True)
        self.pull = ZmqPullQueue(
            config.zmq_tokenizer_addr, True, BaseTokenizerMsg.decoder
        )
        self.push = ZmqPushQueue(
            config.zmq_frontend_addr, False, BaseFrontendMsg.encoder
        )
        self.scripts: dict[str, Script] = {}
        self.asked: dict[int, TokenizeMsg] = {}
        self.aborted: list[int] = []
        self.log: list[tuple[str, int]] = []
        self.made: dict[int, int] = {}
        self.due: dict[int, float] = {}
        self.seen: set[str] = set()
        self.probes = 0
        self.mute = False  # says nothing, not even how it is
        self.busy = False  # makes tokens, but does not say how it is
        self.stopping = False

    def run(self) -> None:
        while not self.stopping:
            while not self.pull.empty():
                self._receive(self.pull.get())
            for uid in list(self.due):
                if not self.mute and time.monotonic() >= self.due[uid]:
                    self._token(uid)
            time.sleep(0.0005)
        self.pull.stop()
        self.push.stop()

    def _receive(self, msg: BaseTokenizerMsg) -> None:
        match msg:
            case TokenizeMsg(uid=uid):
                self.log.append(("ask", uid))
                self.asked[uid], self.made[uid] = msg, 0
                self.due[uid] = time.monotonic() + self.script(uid).pace
            case AbortMsg(uid=uid):
                self.log.append(("abort", uid))
                self.aborted.append(uid)
                self.due.pop(uid, None)
            case StatusMsg(uid=uid):
                self.probes += 1
                if not (self.mute or self.busy):
                    self.push.put(StatusReply(uid, NUMBERS))

    def prompt(self, uid: int) -> str:
        text = self.asked[uid].text
        text = getattr(text, "turns", text)  # of a chat with functions
        chat = isinstance(text, list) and isinstance(text[0], dict)
        return text[-1]["content"] if chat else str(text)

    def script(self, uid: int) -> Script:
        return self.scripts.get(self.prompt(uid), Script())

    def _token(self, uid: int) -> None:
        script, at = self.script(uid), self.made[uid]
        self.made[uid] += 1
        self.due[uid] = time.monotonic() + script.pace
        reply = UserReply(uid, "", False, completion_tokens=1)
        if at == 0:
            prompt = self.prompt(uid)
            reply.prompt_tokens = len(prompt.split())
            reply.cached_tokens = (
                reply.prompt_tokens - 1 if prompt in self.seen else 0
            )
            self.seen.add(prompt)
        params = self.asked[uid].sampling_params
        if at == script.fail_at:
            reply = UserReply(uid, "", True, script.fail, script.error)
        elif at == len(script.pieces):
            reply.finished, reply.finish_reason = True, "stop"
        else:
            reply.incremental_output = piece = script.pieces[at]
            reply.finished = at + 1 == params.max_tokens
            reply.finish_reason = "length" if reply.finished else None
            if params.logprobs is not None:
                reply.logprobs = [logprob(piece, at, params.logprobs)]
        if reply.finished:
            del self.due[uid]
        self.log.append(("reply", uid))
        self.push.put(BatchFrontendMsg([reply]))

    def waits(self, what: Any, timeout: float = 10.0) -> bool:
        """Whether `what()` comes true in time."""
        until = time.monotonic() + timeout
        while not what():
            if time.monotonic() > until:
                return False
            time.sleep(0.002)
        return True


def logprob(piece: str, at: int, count: int) -> dict[str, Any]:
    """An entry for the token number `at`, with so many alternatives."""
    tops = [
        {"token": f"{piece}{i}", "logprob": -at - i, "bytes": [65, i]}
        for i in range(count)
    ]
    return {
        "token": piece,
        "logprob": -0.5 - at,
        "bytes": [*piece.encode()],
        "top_logprobs": tops,
    }


@dataclass
class Served:
    """A running server: its engine, its manager, and a client of it."""

    url: str
    engine: FakeEngine
    manager: FrontendManager
    client: httpx2.Client
    loop: asyncio.AbstractEventLoop

    def chat(self, text: str = "hi there", **fields: Any) -> httpx2.Response:
        body = {"messages": [{"role": "user", "content": text}], **fields}
        return self.client.post("/v1/chat/completions", json=body)

    def complete(
        self, prompt: Any = "hi there", **fields: Any
    ) -> httpx2.Response:
        return self.client.post(
            "/v1/completions", json={"prompt": prompt, **fields}
        )

    def answers(self) -> None:
        """Fails unless a good request is answered: nothing is broken."""
        answer = self.chat().json()
        assert answer["choices"][0]["message"]["content"] == " one two three"


def events(response: httpx2.Response) -> list[Any]:
    """The events of a stream; fails unless the framing is right."""
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.text.endswith("\n\n")
    parts = response.text.removesuffix("\n\n").split("\n\n")
    assert parts[-1] == "data: [DONE]"
    for part in parts:
        assert part.startswith("data: ") and len(part.splitlines()) == 1
    return [json.loads(part.removeprefix("data: ")) for part in parts[:-1]]


def server_settings(folder: str | Path, **settings: Any) -> Any:
    """What of `ServerArgs` the HTTP side reads."""
    base = {
        "model_path": "/models/tiny",
        "model_name": "tiny",
        "api_key": None,
        "root_path": "",
        "cors_origins": (),
        "log_requests": False,
        "log_prompts": False,
        "zmq_tokenizer_addr": f"ipc://{folder}/tokenizer",
        "zmq_frontend_addr": f"ipc://{folder}/frontend",
        "frontend_create_tokenizer_link": False,
    }
    return SimpleNamespace(**base | settings)


@contextmanager
def served(**settings: Any) -> Iterator[Served]:
    """A server on a free port, in a thread, while the block runs."""
    with TemporaryDirectory(prefix="ch15") as folder:
        config = server_settings(folder, **settings)
        engine = FakeEngine(config)
        engine.start()
        box: list[Any] = []
        thread = threading.Thread(target=_serve, args=(config, box))
        thread.start()
        while not (box and box[0].started):
            assert thread.is_alive(), "the server did not start"
            time.sleep(0.005)
        server, manager, loop = box
        port = server.servers[0].sockets[0].getsockname()[1]
        url = f"http://127.0.0.1:{port}"
        try:
            with httpx2.Client(base_url=url, timeout=20) as client:
                yield Served(url, engine, manager, client, loop)
        finally:
            server.should_exit = True
            thread.join(10)
            engine.stopping = True
            engine.join(10)
            assert not thread.is_alive() and not engine.is_alive()


def _serve(config: Any, box: list[Any]) -> None:
    async def main() -> None:
        manager = connect(config)
        server = uvicorn.Server(
            uvicorn.Config(
                create_app(manager),
                port=0,
                log_level="warning",
                timeout_graceful_shutdown=1,
            )
        )
        box.extend([server, manager, asyncio.get_running_loop()])
        await server.serve()
        manager.shutdown()

    asyncio.run(main())
