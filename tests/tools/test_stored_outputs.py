"""Outputs that a page shows beside a chapter's own come from their commands."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tools.models import KNOWN
from tools.steplib.masks import first_difference
from tools.zoo.places import models_dir

ROOT = Path(__file__).parents[2]
STORED = [
    file
    for file in sorted((ROOT / "stages").glob("ch*/*.txt"))
    if file.read_text().startswith("$ ")
]


@pytest.mark.parametrize(
    "file", STORED, ids=lambda f: f"{f.parent.name}-{f.stem}"
)
def test_a_stored_output_is_what_its_command_prints(file):
    command, expected = file.read_text().split("\n", 1)
    python, *arguments = shlex.split(command.removeprefix("$ "))
    assert python == "python"
    for name in KNOWN:
        if name in arguments and not (models_dir() / name).is_dir():
            pytest.skip(
                f"{name} is not here: python tools/models.py fetch {name}"
            )
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    assert first_difference(expected, done.stdout) is None
