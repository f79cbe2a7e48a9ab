"""A process that turns text into tokens, tokens into text, or does both."""

from __future__ import annotations

import signal
import sys
from itertools import groupby
from typing import TYPE_CHECKING, Any, NoReturn

from minisgl.message import (
    AbortBackendMsg,
    AbortMsg,
    BaseBackendMsg,
    BaseFrontendMsg,
    BaseTokenizerMsg,
    BatchBackendMsg,
    BatchFrontendMsg,
    BatchTokenizerMsg,
    DetokenizeMsg,
    StatusBackendMsg,
    StatusMsg,
    StatusReply,
    StatusResultMsg,
    TokenizeMsg,
    UserMsg,
    UserReply,
)
from minisgl.tokenizer.detokenize import DetokenizeManager
from minisgl.tokenizer.logprobs import LogprobFormatter
from minisgl.tokenizer.text import Tokenizer, load_light_tokenizer
from minisgl.tokenizer.tokenize import TokenizeManager
from minisgl.utils import ZmqPullQueue, ZmqPushQueue, init_logger

if TYPE_CHECKING:
    import multiprocessing as mp


def _unwrap_msg(msg: BaseTokenizerMsg) -> list[BaseTokenizerMsg]:
    if isinstance(msg, BatchTokenizerMsg):
        return [inner for part in msg.data for inner in _unwrap_msg(part)]
    return [msg]


class _Worker:
    """What becomes of each kind of message; collects what is to be sent."""

    def __init__(self, tokenizer: Tokenizer, name: str) -> None:
        self.tokenize_manager = TokenizeManager(tokenizer)
        self.detokenize_manager = DetokenizeManager(tokenizer)
        self.logprobs = LogprobFormatter(tokenizer)
        self.logger = init_logger(__name__, name)
        self.to_backend: list[BaseBackendMsg] = []
        self.to_frontend: list[BaseFrontendMsg] = []

    def handle(self, msgs: list[BaseTokenizerMsg]) -> None:
        """In their order: an abort must not overtake its request."""
        for kind, group in groupby(msgs, key=type):
            if kind is TokenizeMsg:
                self._tokenize([m for m in group if isinstance(m, TokenizeMsg)])
                continue
            for msg in group:
                self._handle_one(msg)

    def _handle_one(self, msg: BaseTokenizerMsg) -> None:
        match msg:
            case DetokenizeMsg():
                self._detokenize(msg)
            case AbortMsg(uid=uid):
                self._abort(uid)
            case StatusMsg(uid=uid):
                self.to_backend.append(StatusBackendMsg(uid))
            case StatusResultMsg(uid=uid, numbers=numbers):
                self.to_frontend.append(StatusReply(uid, numbers))
            case _:
                self.logger.warning(f"ignored, not for here: {msg!r}")

    def _tokenize(self, msgs: list[TokenizeMsg]) -> None:
        results = self.tokenize_manager.tokenize(msgs)
        for msg, ids in zip(msgs, results, strict=True):
            if isinstance(ids, ValueError):
                self._refuse(msg.uid, "refused", str(ids))
            else:
                prompt: Any = ids  # an array arrives as a tensor
                request = UserMsg(msg.uid, prompt, msg.sampling_params)
                self.to_backend.append(request)

    def _detokenize(self, msg: DetokenizeMsg) -> None:
        known = self.detokenize_manager.decode_map.get(msg.uid)
        try:
            # Asked before this token is counted: is there none before it?
            first = known is None or not known.decoded_ids
            logprobs = self.logprobs.format(msg, first)
            [text] = self.detokenize_manager.detokenize([msg])
        except Exception as error:
            self._abort(msg.uid)
            self._refuse(msg.uid, "error", f"{type(error).__name__}: {error}")
            return
        reply = UserReply(
            msg.uid,
            text,
            msg.finished,
            msg.finish_reason,
            msg.error,
            completion_tokens=int(msg.next_token >= 0),
            prompt_tokens=msg.prompt_tokens,
            cached_tokens=msg.cached_tokens,
            logprobs=logprobs,
            accepted_tokens=msg.accepted_tokens,
            rejected_tokens=msg.rejected_tokens,
        )
        self.to_frontend.append(reply)

    def _abort(self, uid: int) -> None:
        self.detokenize_manager.abort(uid)
        self.to_backend.append(AbortBackendMsg(uid))

    def _refuse(self, uid: int, finish_reason: str, error: str) -> None:
        self.logger.warning(f"request {uid}: {error}")
        self.to_frontend.append(UserReply(uid, "", True, finish_reason, error))


def _receive(
    queue: ZmqPullQueue[BaseTokenizerMsg], most: int, worker: _Worker
) -> list[BaseTokenizerMsg]:
    """Wait for a message, then take what else has come, up to `most`."""
    msgs: list[BaseTokenizerMsg] = []
    while not msgs or (len(msgs) < most and not queue.empty()):
        try:
            msgs += _unwrap_msg(queue.get())
        except ValueError as error:
            worker.logger.warning(f"skipped: {error}")
    return msgs


def _leave(number: int, frame: object) -> NoReturn:
    raise SystemExit(0)


def tokenize_worker(
    *,
    tokenizer_path: str,
    addr: str,
    create: bool,
    backend_addr: str,
    frontend_addr: str,
    local_bs: int,
    tokenizer_id: int = -1,
    model_source: str = "huggingface",
    ack_queue: mp.Queue[str] | None = None,
) -> None:
    """Serve until SIGTERM; meant as the target of a process.

    It may get requests, tokens, or both, and needs not know which. What one
    request does wrong is its own answer; the others do not notice.

    tokenizer_path: a folder or a hub id.
    addr: where its messages come from; created here if `create`.
    backend_addr, frontend_addr: where requests and text go; created there.
    local_bs: most messages to take before passing on what came of them.
    tokenizer_id: which of several it is, for the log.
    model_source: where an id is fetched from; only huggingface.
    ack_queue: gets a line once the process is ready.

    Raises:
        SystemExit: 0 on SIGTERM; 1 if there is no tokenizer, with a line on
            stderr.
    """
    # Ctrl-C goes to all processes of a terminal; the parent decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _leave)
    name = f"-{tokenizer_id}" if tokenizer_id >= 0 else ""
    try:
        if model_source != "huggingface":
            raise ValueError(
                f"no model source {model_source!r}; fetch the model, then give "
                "its folder"
            )
        worker = _Worker(load_light_tokenizer(tokenizer_path), name)
    except (OSError, ValueError) as error:
        sys.exit(f"tokenizer{name}: {error}")
    inbox = ZmqPullQueue(addr, create, BaseTokenizerMsg.decoder)
    backend = ZmqPushQueue(backend_addr, False, BaseBackendMsg.encoder)
    frontend = ZmqPushQueue(frontend_addr, False, BaseFrontendMsg.encoder)
    try:
        if ack_queue is not None:
            ack_queue.put(f"tokenizer{name} is ready")
        while True:
            worker.handle(_receive(inbox, local_bs, worker))
            _send(backend, worker.to_backend, BatchBackendMsg)
            _send(frontend, worker.to_frontend, BatchFrontendMsg)
    finally:
        for queue in (inbox, backend, frontend):
            queue.stop()


def _send(queue: ZmqPushQueue[Any], msgs: list[Any], batch: type[Any]) -> None:
    """Several as one message; empties the list."""
    if msgs:
        queue.put(msgs[0] if len(msgs) == 1 else batch([*msgs]))
        msgs.clear()
