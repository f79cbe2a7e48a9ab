"""Queues between processes: ZeroMQ sockets that carry msgpack.

An address is `ipc://PATH`, a socket file, or `tcp://HOST:PORT`. One side
creates it, the others join, in any order: ZeroMQ goes on trying.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, ClassVar, Generic, TypeVar

import msgpack
import zmq
import zmq.asyncio

T = TypeVar("T")
Encoder = Callable[[T], dict[str, Any]]
Decoder = Callable[[dict[str, Any]], T]

# What a closed sender has not sent yet gets a second to leave.
_FLUSH: dict[int, int] = {zmq.LINGER: 1000}

# The contexts of all queues that are not stopped. A context that is collected
# as garbage before its socket is waits for that socket, for ever.
_contexts: set[Any] = set()


def _pack(encoder: Encoder[T], obj: T) -> bytes:
    try:
        raw: bytes = msgpack.packb(encoder(obj))
    except (OverflowError, RecursionError) as error:
        name = type(obj).__name__
        raise ValueError(f"this {name} cannot be sent: {error}") from None
    return raw


def _unpack(decoder: Decoder[T], raw: bytes) -> T:
    try:
        return decoder(msgpack.unpackb(raw))
    except (ValueError, RecursionError) as error:
        reason = str(error) or type(error).__name__
        size = len(raw)
        raise ValueError(f"{size} bytes are refused: {reason}") from error


class _Queue:
    """What all queues share: a socket, and its end."""

    _kind: int
    _options: ClassVar[dict[int, int]] = {zmq.LINGER: 0}
    _context_class: type[Any] = zmq.Context

    def __init__(self, addr: str, create: bool) -> None:
        # A context of its own: `stop` can wait until it is empty.
        self._context = self._context_class()
        _contexts.add(self._context)
        self._socket = self._context.socket(self._kind)
        # Any number may wait: what limits them is how many requests run.
        self._socket.set_hwm(0)
        for option, value in self._options.items():
            self._socket.setsockopt(option, value)
        if create:
            self._socket.bind(addr)
        else:
            self._socket.connect(addr)

    def stop(self) -> None:
        """Close. A sender waits, a second at most, until all has left."""
        self._socket.close()
        self._context.term()
        _contexts.discard(self._context)


class _Sender(_Queue, Generic[T]):
    _options = _FLUSH

    def __init__(self, addr: str, create: bool, encoder: Encoder[T]) -> None:
        super().__init__(addr, create)
        self._encoder = encoder

    def put(self, obj: T) -> None:
        """Send.

        Raises:
            TypeError: a value that has no place in a message.
            ValueError: one that cannot be packed, as an int of over 64 bits.
        """
        self.put_raw(_pack(self._encoder, obj))

    def put_raw(self, raw: bytes) -> None:
        """Send what another queue's `get_raw` returned."""
        self._socket.send(raw, copy=False)


class _Receiver(_Queue, Generic[T]):
    def __init__(self, addr: str, create: bool, decoder: Decoder[T]) -> None:
        super().__init__(addr, create)
        self._decoder = decoder

    def get(self) -> T:
        """The next message; waits for one.

        Raises:
            ValueError: what came is no message; the next `get` goes on.
        """
        return self.decode(self.get_raw())

    def get_raw(self) -> bytes:
        """The next message as it came; waits for one."""
        raw: bytes = self._socket.recv()
        return raw

    def decode(self, raw: bytes) -> T:
        """The message of such bytes; ValueError for any other."""
        return _unpack(self._decoder, raw)

    def empty(self) -> bool:
        """Whether `get` would have to wait."""
        return bool(self._socket.poll(timeout=0) == 0)


class ZmqPushQueue(_Sender[T]):
    """Each message goes to one puller.

    Where the puller created the address, `put` never waits. Where the pusher
    did, it waits until the first puller has joined.
    """

    _kind = zmq.PUSH


class ZmqPullQueue(_Receiver[T]):
    """Takes messages of all pushers in turn, those of each in order."""

    _kind = zmq.PULL


class ZmqPubQueue(_Sender[T]):
    """Each message goes to all subscribers that have joined.

    A publisher drops what nobody has subscribed to yet, and joining takes
    time: call `wait_for_subscribers` before the first message.
    """

    # XPUB, not PUB: it can also receive, and what it receives is who joins and
    # leaves. VERBOSER: all of them, else equal subscriptions count as one.
    _kind = zmq.XPUB
    _options: ClassVar[dict[int, int]] = {**_FLUSH, zmq.XPUB_VERBOSER: True}

    def __init__(self, addr: str, create: bool, encoder: Encoder[T]) -> None:
        super().__init__(addr, create, encoder)
        self._joined = 0

    def wait_for_subscribers(self, count: int, timeout: float = 60.0) -> None:
        """Return once `count` have joined, those that left again not counted.

        Raises:
            TimeoutError: they have not within `timeout` seconds.
        """
        until = time.monotonic() + timeout
        while self._count_subscribers() < count:
            left = max(0.0, until - time.monotonic())
            if self._socket.poll(timeout=left * 1000) == 0:
                raise TimeoutError(
                    f"{self._joined} of {count} subscribers joined "
                    f"in {timeout:g} s"
                )

    def _count_subscribers(self) -> int:
        while self._socket.poll(timeout=0):
            # The first byte is 1 for one that joins, 0 for one that leaves.
            self._joined += 1 if self._socket.recv()[0] == 1 else -1
        return self._joined


class ZmqSubQueue(_Receiver[T]):
    """Receives all that a publisher sends once it has seen this subscriber."""

    _kind = zmq.SUB

    def __init__(self, addr: str, create: bool, decoder: Decoder[T]) -> None:
        super().__init__(addr, create, decoder)
        self._socket.setsockopt(zmq.SUBSCRIBE, b"")


class ZmqAsyncPushQueue(_Queue, Generic[T]):
    """As `ZmqPushQueue`, for asyncio."""

    _kind = zmq.PUSH
    _options = _FLUSH
    _context_class = zmq.asyncio.Context

    def __init__(self, addr: str, create: bool, encoder: Encoder[T]) -> None:
        super().__init__(addr, create)
        self._encoder = encoder

    async def put(self, obj: T) -> None:
        """Send; raises as `ZmqPushQueue.put` does."""
        await self._socket.send(_pack(self._encoder, obj), copy=False)


class ZmqAsyncPullQueue(_Queue, Generic[T]):
    """As `ZmqPullQueue`, for asyncio."""

    _kind = zmq.PULL
    _context_class = zmq.asyncio.Context

    def __init__(self, addr: str, create: bool, decoder: Decoder[T]) -> None:
        super().__init__(addr, create)
        self._decoder = decoder

    async def get(self) -> T:
        """The next message; raises as `ZmqPullQueue.get` does."""
        return _unpack(self._decoder, await self._socket.recv())
