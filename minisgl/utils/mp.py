"""Queues between processes: ZeroMQ sockets that carry msgpack."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgpack
import zmq
import zmq.asyncio

T = TypeVar("T")
Encoder = Callable[[T], dict[str, Any]]
Decoder = Callable[[dict[str, Any]], T]


def _open(context: Any, kind: int, addr: str, create: bool) -> Any:
    """A socket at `addr`; one side creates the address, the other joins it.

    A peer may join before the address exists: ZeroMQ goes on trying. No limit
    on waiting messages, since what limits them is how many requests run.
    """
    socket = context.socket(kind)
    socket.set_hwm(0)
    if create:
        socket.bind(addr)
    else:
        socket.connect(addr)
    return socket


class _Queue:
    """What all queues share: a socket, and its end."""

    def __init__(
        self, context: Any, kind: int, addr: str, create: bool
    ) -> None:
        self._socket = _open(context, kind, addr, create)

    def stop(self) -> None:
        """Close; what was put and is not yet sent gets a second to leave."""
        self._socket.close(linger=1000)


class _Sender(_Queue, Generic[T]):
    _kind: int

    def __init__(self, addr: str, create: bool, encoder: Encoder[T]) -> None:
        super().__init__(zmq.Context.instance(), self._kind, addr, create)
        self._encoder = encoder

    def put(self, obj: T) -> None:
        """Send; never waits for the receiver."""
        self.put_raw(msgpack.packb(self._encoder(obj)))

    def put_raw(self, raw: bytes) -> None:
        """Send what another queue's `get_raw` returned."""
        self._socket.send(raw, copy=False)


class _Receiver(_Queue, Generic[T]):
    _kind: int

    def __init__(self, addr: str, create: bool, decoder: Decoder[T]) -> None:
        super().__init__(zmq.Context.instance(), self._kind, addr, create)
        self._decoder = decoder

    def get(self) -> T:
        """The next message; waits for one."""
        return self.decode(self.get_raw())

    def get_raw(self) -> bytes:
        """The next message as it came; waits for one."""
        raw: bytes = self._socket.recv()
        return raw

    def decode(self, raw: bytes) -> T:
        return self._decoder(msgpack.unpackb(raw))

    def empty(self) -> bool:
        """Whether `get` would have to wait."""
        return bool(self._socket.poll(timeout=0) == 0)


class ZmqPushQueue(_Sender[T]):
    """Each message goes to one puller."""

    _kind = zmq.PUSH


class ZmqPullQueue(_Receiver[T]):
    """Takes messages of all pushers in turn."""

    _kind = zmq.PULL


class ZmqPubQueue(_Sender[T]):
    """Each message goes to all subscribers that have joined.

    A publisher drops what nobody has subscribed to yet, and joining takes
    time: call `wait_for_subscribers` before the first message.
    """

    # XPUB, not PUB: it also receives, a message for every subscriber.
    _kind = zmq.XPUB

    def __init__(self, addr: str, create: bool, encoder: Encoder[T]) -> None:
        super().__init__(addr, create, encoder)
        # Else only the first of equal subscriptions would be reported.
        self._socket.setsockopt(zmq.XPUB_VERBOSE, 1)
        self._joined = 0

    def wait_for_subscribers(self, count: int, timeout: float = 60.0) -> None:
        """Return once `count` have joined.

        Raises:
            TimeoutError: they have not within `timeout` seconds.
        """
        until = time.monotonic() + timeout
        while self._joined < count:
            left = max(0.0, until - time.monotonic())
            if self._socket.poll(timeout=left * 1000) == 0:
                raise TimeoutError(
                    f"{self._joined} of {count} subscribers joined in {timeout:g} s"
                )
            # The first byte is 1 for one that joins, 0 for one that leaves.
            self._joined += 1 if self._socket.recv()[0] == 1 else -1


class ZmqSubQueue(_Receiver[T]):
    """Receives all a publisher sends from now on."""

    _kind = zmq.SUB

    def __init__(self, addr: str, create: bool, decoder: Decoder[T]) -> None:
        super().__init__(addr, create, decoder)
        self._socket.setsockopt(zmq.SUBSCRIBE, b"")


class ZmqAsyncPushQueue(_Queue, Generic[T]):
    """As `ZmqPushQueue`, for asyncio."""

    def __init__(self, addr: str, create: bool, encoder: Encoder[T]) -> None:
        context = zmq.asyncio.Context.instance()
        super().__init__(context, zmq.PUSH, addr, create)
        self._encoder = encoder

    async def put(self, obj: T) -> None:
        await self._socket.send(msgpack.packb(self._encoder(obj)), copy=False)


class ZmqAsyncPullQueue(_Queue, Generic[T]):
    """As `ZmqPullQueue`, for asyncio."""

    def __init__(self, addr: str, create: bool, decoder: Decoder[T]) -> None:
        context = zmq.asyncio.Context.instance()
        super().__init__(context, zmq.PULL, addr, create)
        self._decoder = decoder

    async def get(self) -> T:
        return self._decoder(msgpack.unpackb(await self._socket.recv()))
