"""The folder of the model, and the folder where the processes meet."""

from __future__ import annotations

import os
import re
import shutil
import socket
from dataclasses import replace
from pathlib import Path

from minisgl.server.args import ServerArgs
from minisgl.utils import download_hf_weight


def resolve_model(args: ServerArgs) -> ServerArgs:
    """The settings with a folder as the model's path.

    A model of the hub is fetched here, once, and not by every process. Clients
    call it by the path that was given.

    Raises:
        FileNotFoundError: there is no such model.
    """
    folder = Path(download_hf_weight(args.model_path))
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(
            f"--model {args.model_path}: this folder has no config.json; give "
            "the folder of a model in the format of Hugging Face"
        )
    return replace(
        args, model_path=str(folder), served_model_name=args.model_name
    )


def remove_stale_folders(args: ServerArgs) -> None:
    """Remove what servers left that were killed with all their processes."""
    for folder in args.socket_dir.parent.glob("minisgl-*-*"):
        found = re.fullmatch(r"minisgl-(\d+)-[0-9a-f]+", folder.name)
        if found and not _is_alive(int(found[1])) and not _is_used(folder):
            shutil.rmtree(folder, ignore_errors=True)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody else's
        return True
    return True


def _is_used(folder: Path) -> bool:
    """Whether somebody listens in it.

    A process that does not exist here may exist in another container with the
    same /tmp.
    """
    try:
        return any(_answers(path) for path in folder.iterdir())
    except OSError:  # it is not ours, or has just gone
        return True


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return path.is_socket() and probe.connect_ex(str(path)) == 0
