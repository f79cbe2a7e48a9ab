"""One line a message: time, who speaks, how serious, what."""

from __future__ import annotations

import logging
import os
import sys

_FORMAT = "[%(asctime)s|%(name)s] %(levelname)s %(message)s"
_COLORS = {"WARNING": "\033[33m", "ERROR": "\033[31m", "CRITICAL": "\033[31m"}


class _Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        color = _COLORS.get(record.levelname)
        return (
            f"{color}{line}\033[0m" if color and sys.stderr.isatty() else line
        )


def init_logger(
    name: str, suffix: str = "", *, level: str | None = None
) -> logging.Logger:
    """A logger that writes to stderr.

    name: the module's ``__name__``; its last part is shown.
    suffix: who speaks when several processes do, for example a rank.
    level: as in logging; LOG_LEVEL in the environment is the default, or INFO.
    """
    logger = logging.getLogger(name.rsplit(".", 1)[-1] + suffix)
    if not logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(_Formatter(_FORMAT, datefmt="%H:%M:%S"))
        logger.addHandler(handler)
        logger.propagate = False
        logger.setLevel((level or os.environ.get("LOG_LEVEL", "INFO")).upper())
    return logger
