"""A pull queue that knows how long it may wait."""

from __future__ import annotations

import math
import time
from typing import TypeVar

from minisgl.utils.mp import ZmqPullQueue

__all__ = ["TimedPullQueue"]

T = TypeVar("T")


class TimedPullQueue(ZmqPullQueue[T]):
    """`get` with a limit, and several messages at once."""

    def get_within(self, timeout: float) -> T:
        """The next message, if it comes within `timeout` seconds.

        Raises:
            TimeoutError: it does not.
            ValueError: what came is no message; the next call goes on.
        """
        if self._socket.poll(timeout=math.ceil(timeout * 1000)) == 0:
            raise TimeoutError(f"no message came in {timeout:g} s")
        return self.get()

    def gather(self, limit: int, window: float) -> list[T]:
        """Wait for a message, then take what else comes within `window` seconds.

        Returns from 1 to `limit` messages in their order, as soon as there are
        `limit` or the window, which opens with the first message, has closed.
        What is no message is passed over and changes neither.
        """
        found: list[T] = []
        closes = math.inf
        while len(found) < limit:
            try:
                if found:
                    left = max(0.0, closes - time.monotonic())
                    found.append(self.get_within(left))
                else:
                    found.append(self.get())
                    closes = time.monotonic() + window
            except TimeoutError:
                break
            except ValueError:
                continue
        return found
