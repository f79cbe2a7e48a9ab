"""The HTTP process's end of the queues: numbers, replies, aborts, health."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from minisgl.message import (
    AbortMsg,
    BaseFrontendMsg,
    BaseTokenizerMsg,
    BatchFrontendMsg,
    StatusMsg,
    StatusReply,
    UserReply,
)
from minisgl.server.errors import ApiError
from minisgl.utils import ZmqAsyncPullQueue, ZmqAsyncPushQueue, init_logger

if TYPE_CHECKING:
    from minisgl.server.args import ServerArgs

logger = init_logger(__name__)

Reply = UserReply | StatusReply
Replies = asyncio.Queue[Reply]


def _unwrap_msg(msg: BaseFrontendMsg) -> list[Reply]:
    if isinstance(msg, BatchFrontendMsg):
        return [reply for part in msg.data for reply in _unwrap_msg(part)]
    if isinstance(msg, UserReply | StatusReply):
        return [msg]
    logger.warning(f"ignored, for it is no reply: {msg!r}")
    return []


@dataclass
class FrontendManager:
    """Sends requests to the tokenizer and gives each the replies to it.

    ack_map: for every number that somebody waits for, the queue of its replies.
    failure: why the engine cannot answer any more; None while it can.
    """

    config: ServerArgs
    send_tokenizer: ZmqAsyncPushQueue[BaseTokenizerMsg]
    recv_tokenizer: ZmqAsyncPullQueue[BaseFrontendMsg]
    uid_counter: int = 0
    initialized: bool = False
    ack_map: dict[int, Replies] = field(default_factory=dict)
    failure: str | None = None
    last_heard: float = field(default=0.0, init=False)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set, init=False)

    def new_user(self, replies: Replies | None = None) -> int:
        """A new number; `replies` gets what is said to it, or a new queue."""
        uid = self.uid_counter
        self.uid_counter += 1
        self.ack_map[uid] = asyncio.Queue() if replies is None else replies
        return uid

    async def listen(self) -> None:
        """Hand out replies, as long as this process lives."""
        while True:
            try:
                msg = await self.recv_tokenizer.get()
            except ValueError as error:
                logger.error(f"a reply is lost: {error}")
                continue
            self.last_heard = time.monotonic()
            for reply in _unwrap_msg(msg):
                self._deliver(reply)

    def _deliver(self, reply: Reply) -> None:
        if (replies := self.ack_map.get(reply.uid)) is not None:
            replies.put_nowait(reply)
        elif isinstance(reply, UserReply) and not reply.finished:
            # With several tokenizers an abort may overtake its request.
            self._spawn(self.abort_user(reply.uid))

    def _create_listener_once(self) -> None:
        if not self.initialized:
            self.initialized = True
            self._spawn(self.listen())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        # The loop itself keeps only weak references to its tasks.
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("the queues are broken", exc_info=error)
            self.fail_all(
                f"the server cannot talk to its engine: {error}; read its log "
                "and restart it"
            )

    async def send_one(self, msg: BaseTokenizerMsg) -> None:
        """Send to the tokenizer.

        Raises:
            ApiError: 503 if the engine is gone, 400 for what cannot be sent.
        """
        if self.failure is not None:
            raise ApiError(503, self.failure)
        self._create_listener_once()
        try:
            await self.send_tokenizer.put(msg)
        except ValueError as error:
            raise ApiError(400, str(error)) from None

    async def wait_for_ack(self, uid: int) -> AsyncIterator[UserReply]:
        """All replies to a number, up to the last one."""
        replies = self.ack_map[uid]
        while True:
            reply = await replies.get()
            assert isinstance(reply, UserReply)
            if reply.finished:
                del self.ack_map[uid]
            yield reply
            if reply.finished:
                return

    async def abort_user(self, uid: int) -> None:
        """Nobody waits for this number any more."""
        self.ack_map.pop(uid, None)
        if self.failure is None:
            await self.send_one(AbortMsg(uid))

    def release(self, uids: Iterable[int]) -> None:
        """Abort all of these, without waiting: who is being cancelled cannot."""
        for uid in uids:
            self.ack_map.pop(uid, None)
            self._spawn(self.abort_user(uid))

    async def status(self, timeout: float = 5.0) -> dict[str, int]:
        """What the scheduler counts, see `StatusReply`.

        Raises:
            TimeoutError: it has said nothing in `timeout` seconds.
            ApiError: 503, the engine is gone.
        """
        uid = self.new_user()
        replies = self.ack_map[uid]
        try:
            await self.send_one(StatusMsg(uid))
            reply = await asyncio.wait_for(replies.get(), timeout)
        finally:
            del self.ack_map[uid]
        if isinstance(reply, StatusReply):
            return reply.numbers
        raise ApiError(503, reply.error or "the engine is gone")

    def fail_all(self, reason: str) -> None:
        """The engine is gone: tell all who wait, and all who come."""
        self.failure = reason
        for uid, replies in self.ack_map.items():
            replies.put_nowait(UserReply(uid, "", True, "gone", reason))

    def shutdown(self) -> None:
        """Close the queues."""
        self.send_tokenizer.stop()
        self.recv_tokenizer.stop()
