"""What a scheduler does before it waits."""

from __future__ import annotations

import time
from collections.abc import Callable

from minisgl.utils import init_logger

logger = init_logger(__name__)


class IdleCheck:
    """Checks the books now and then, and never stops the server for it.

    With a large pool a check takes a while, and the next request may be near.
    So checks take at most a hundredth of the time.
    """

    def __init__(self) -> None:
        self._not_before = 0.0

    def run(self, check: Callable[[], None]) -> None:
        """Call `check`, if the last call is long enough ago.

        check: raises RuntimeError when something is wrong, which is logged.
        """
        begin = time.monotonic()
        if begin < self._not_before:
            return
        try:
            check()
        except RuntimeError as error:
            logger.error(f"the books are wrong: {error}")
        end = time.monotonic()
        self._not_before = end + 100 * (end - begin)
