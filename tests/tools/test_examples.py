"""Commands that README and pages tell the reader to type do what they say."""

import re
import shlex
import subprocess
import sys

import pytest

from tools.models import KNOWN
from tools.steplib.book import ROOT
from tools.steplib.pages import is_tag_tree
from tools.zoo.places import models_dir

WORKING = "docs/en/working-with-this-repository.md"
EXAMPLES = {
    "python -m minisgl --help": ("README.md", "--model"),
    "python tools/steps.py owns core.py": ("CONTRIBUTING.md", "ch01"),
    "python tools/steps.py list --churn": (
        "CONTRIBUTING.md",
        "scheduler/scheduler.py",
    ),
    "python tools/steps.py tree 9": (WORKING, "kvcache/radix_cache.py"),
    "python tools/steps.py run 5": (WORKING, "new/all tokens of each request"),
    "python tools/models.py list": (WORKING, "qwen3-tiny"),
    'python tools/steps.py run 0 --model smollm2-135m --prompt "What is 2+2?"': (
        WORKING,
        "tokens/s",
    ),
}
"""Command -> the file that tells of it, and something that it prints."""

pytestmark = pytest.mark.skipif(
    is_tag_tree(ROOT), reason="a tag has an older engine"
)


def run(*arguments):
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )


@pytest.mark.parametrize("command", EXAMPLES)
def test_a_command_that_a_page_names(command):
    file, expected = EXAMPLES[command]
    told = (
        (ROOT / file)
        .read_text()
        .replace("tools/steps.py tree N", "python tools/steps.py tree 9")
    )
    assert command in told
    _, *arguments = shlex.split(command)
    for name in KNOWN:
        if name in arguments and not (models_dir() / name).is_dir():
            pytest.skip(f"{name} is not here: tools/models.py fetch {name}")
    done = run(*arguments)
    assert done.returncode == 0, done.stdout[-2000:]
    assert expected in done.stdout


def test_the_question_of_both_readmes_is_answered():
    question = "What is 2+2?"
    for file in ("README.md", "README.zh.md"):
        assert (
            f"make run ARGS='--prompt \"{question}\"'"
            in (ROOT / file).read_text()
        )
    done = run("tools/run.py", "--prompt", question)
    assert done.returncode == 0, done.stdout[-2000:]
    if (models_dir() / "smollm2-135m").is_dir():
        assert "4" in done.stdout


def test_every_target_that_a_text_names_is_there():
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    texts = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*/*.md")]
    named = set()
    for path in texts:
        text = path.read_text()
        named |= {*re.findall(r"`make ([a-z-]+)", text)}
        for block in re.findall(r"```bash\n(.*?)```", text, re.DOTALL):
            named |= {*re.findall(r"^make ([a-z-]+)", block, re.MULTILINE)}
    assert {"setup", "run", "test", "videos"} <= named <= targets
