"""Each fault of upstream, brought back in a copy, turns its own test red, and why."""

import json
import os
import re
import subprocess
import sys

import pytest

from tools.steplib import reverts
from tools.steplib.book import ROOT, Book
from tools.steplib.venv import main_checkout

REASONS = {
    1: r"1 ids where transformers gives 2; the first 1 are equal",
    2: r"a message after the end: DetokenizeMsg\(uid=1, .*finished=False",
    3: r"token \d+: expected \d+, got \d+; gap of the two best logits",
    4: r"RuntimeError: pages do not add up: .* locked",
    5: r"the first broadcast is lost: \[[1-9]\d*, [1-9]\d*, [1-9]\d*\] came first",
}

# Imports once, then a child for each copy. The parent computes nothing: a child
# of a process that has run an OpenMP region hangs.
RUNNER = """
import json, os, sys
import pytest, rich.progress, safetensors.torch, torch, transformers

for folder, test in json.loads(sys.argv[1]):
    if os.fork() == 0:
        os.chdir(folder)
        sys.path.insert(0, folder)
        sys.dont_write_bytecode = True
        with open("out.txt", "w") as out:
            os.dup2(out.fileno(), 1)
            os.dup2(out.fileno(), 2)
        options = ["-p", "no:cacheprovider", "-c", "pyproject.toml", test]
        code = pytest.main([*options, "--rootdir=."])
        minisgl = sys.modules["minisgl"].__file__
        sys.stdout.flush()
        with open("verdict.json", "w") as file:
            json.dump([int(code), minisgl], file)
        os._exit(0)
while True:
    try:
        os.wait()
    except ChildProcessError:
        break
"""


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory):
    """By fault: (exit code of pytest, where minisgl came from, folder, output)."""
    book, faults, jobs = Book.load(ROOT), reverts.faults(ROOT), []
    for fault in faults:
        folder = tmp_path_factory.mktemp("reverts") / str(fault.number)
        reverts.apply(fault, reverts.prepare(book, fault, folder))
        jobs.append([str(folder.resolve()), fault.test])
    env = os.environ | {
        "MINISGL_MODELS": os.environ.get("MINISGL_MODELS")
        or str(main_checkout(ROOT) / "models"),
        "MINISGL_CACHE": os.environ.get("MINISGL_CACHE")
        or str(main_checkout(ROOT) / ".cache"),
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "200",
    }
    env.pop("PYTHONSAFEPATH", None)
    command = [sys.executable, "-c", RUNNER, json.dumps(jobs)]
    subprocess.run(command, cwd=jobs[0][0], env=env, check=True, timeout=300)
    found = {}
    for fault, (folder, _) in zip(faults, jobs, strict=True):
        with open(f"{folder}/verdict.json") as file:
            code, package = json.load(file)
        with open(f"{folder}/out.txt") as file:
            found[fault.number] = code, package, folder, file.read()
    return found


@pytest.mark.parametrize("number", REASONS)
def test_a_fault_that_is_back_turns_its_test_red(number, verdicts):
    code, package, folder, output = verdicts[number]
    assert package.startswith(folder), "the copy's package did not run"
    assert code == 1, output
    assert re.search(REASONS[number], output), output
    assert "1 failed" in output


@pytest.mark.parametrize("number", REASONS)
def test_the_book_shows_what_the_command_prints(number, verdicts):
    fault = reverts.find(ROOT, number)
    shown = (ROOT / f"docs/outputs/revert-{number}.txt").read_text("utf-8")
    expected = [
        f"$ python tools/steps.py revert {number}",
        f"fault {number}: {fault.sentence}",
        f"without it: {fault.test} is green",
        *reverts.reason(verdicts[number][3]).splitlines(),
        f"with it: {fault.test} is red",
        f"the copy with the fault: .cache/revert-{number}",
    ]
    # Which broadcast came first depends on the machine.
    shown = re.sub(r"\[(\d+, ){2}\d+\]", "[...]", shown).splitlines()
    assert [re.sub(r"\[(\d+, ){2}\d+\]", "[...]", e) for e in expected] == shown


def test_every_patch_has_a_reason_and_its_own_test():
    faults = reverts.faults(ROOT)
    assert [fault.number for fault in faults] == [*REASONS]
    for fault in faults:
        file, _, name = fault.test.partition("::")
        assert name.startswith(f"test_fault{fault.number}_")
        assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8")
