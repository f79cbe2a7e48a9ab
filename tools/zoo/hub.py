"""Checkpoints of a model hub: Hugging Face, or ModelScope when asked for."""

import re
from pathlib import Path

from tools.zoo.places import ModelError, models_dir

SOURCES = ("huggingface", "modelscope")
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
PATTERNS = ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model"]
COMPLETE = ".complete"
"""Name of the file that a finished download leaves, so that it is not asked again."""


def hub_path(hub_id: str, source: str = "huggingface") -> Path:
    """Local folder of `org/name`, downloaded (again only if it broke off).

    Raises:
        ModelError: unknown source, or the download failed.
    """
    if source not in SOURCES:
        raise ModelError(
            f"no model source {source!r}; known: {', '.join(SOURCES)}"
        )
    folder = models_dir() / hub_id.replace("/", "--")
    if (folder / COMPLETE).is_file():
        return folder
    try:
        if source == "modelscope":
            _from_modelscope(hub_id, folder)
        else:
            _from_huggingface(hub_id, folder)
    except ModelError:
        raise
    except Exception as error:  # the clients raise dozens of kinds
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise ModelError(
            f"cannot fetch {hub_id} from {source} ({reason[0].rstrip('. :')}); check"
            " the id and the network, or give a local folder"
        ) from error
    if not (folder / "config.json").is_file():
        raise ModelError(
            f"{hub_id} from {source} has no config.json: not a model?"
        )
    (folder / COMPLETE).touch()
    return folder


def _from_huggingface(hub_id: str, folder: Path) -> None:
    from huggingface_hub import snapshot_download

    snapshot_download(hub_id, local_dir=folder, allow_patterns=PATTERNS)


def _from_modelscope(hub_id: str, folder: Path) -> None:
    try:
        from modelscope import snapshot_download
    except ImportError as error:
        raise ModelError(
            "the source modelscope needs a package: pip install modelscope"
        ) from error
    snapshot_download(hub_id, local_dir=str(folder), allow_patterns=PATTERNS)
