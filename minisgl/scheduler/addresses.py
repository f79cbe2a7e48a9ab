"""Where the processes of one server meet: socket files in a folder of theirs."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minisgl.scheduler.config import SchedulerConfig

# What the system takes as the path of a socket (unix(7): 108 with a zero), and
# how much of it a file's name in our folder may need.
_LONGEST_PATH = 107
_LONGEST_NAME = 19


def unique_suffix() -> str:
    """A text that no other start of a server has.

    The number of a process alone comes again, for example in every container.
    """
    return f"{os.getpid()}-{secrets.token_hex(4)}"


def socket_dir(suffix: str) -> Path:
    """The folder of the start with that suffix.

    It lies where temporary files go (TMPDIR), or in /tmp if that path is too
    long for a socket.
    """
    folder = Path(tempfile.gettempdir()) / f"minisgl-{suffix}"
    room = _LONGEST_PATH - len("/") - _LONGEST_NAME
    if len(os.fsencode(folder)) > room:
        folder = Path("/tmp") / folder.name
    return folder


def socket_addr(suffix: str, name: str) -> str:
    """The ZeroMQ address of a socket file in that folder."""
    return f"ipc://{socket_dir(suffix) / name}"


def make_socket_dir(config: SchedulerConfig) -> None:
    """Make the folder, for this user only.

    For whoever starts the processes, before the first of them.

    Raises:
        FileExistsError: this configuration has been started before.
    """
    config.socket_dir.mkdir(mode=0o700)


def remove_socket_dir(config: SchedulerConfig) -> None:
    """Remove the folder with all that is left in it; fine if it is gone.

    For whoever made it, after the last process.
    """
    shutil.rmtree(config.socket_dir, ignore_errors=True)
