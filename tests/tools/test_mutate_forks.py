"""Mutations are the ones that are meant; children end in time, whatever they do."""

import dataclasses
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tools.steplib import child, forks, mutate

OLD = """\
def kept(a: int) -> int:
    return a + 1
"""
NEW = (
    OLD
    + '''

def wrote(a: int, b: bool = True) -> list[int]:
    """One + two."""
    if TYPE_CHECKING:
        a = 7
    if not b and a in (a, a) or (a) < a - a:
        raise ValueError("a" + f"{a + 1}")
    a += len("x" + "y")
    return a is not None
'''
)


def edits(text, old="", count=100):
    found = mutate.drawn({"x.py": text}, {"x.py": old}, count, "seed")
    return {(m.line, m.edit.partition(" in `")[0]): m.text for m in found}


def test_drawn_edits_are_operators_of_the_new_lines():
    found = edits(NEW, OLD)
    assert set(found) == {
        (5, "True -> False"),
        (9, "not -> nothing"),
        (9, "and -> or"),
        (9, "in -> not in"),
        (9, "or -> and"),
        (9, "< -> <="),
        (9, "- -> +"),
        (12, "is not -> is"),
    }
    whole = NEW.replace("(a) < a - a", "(a) <= a - a")
    assert found[9, "< -> <="] == whole
    assert {(2, "+ -> -"), (2, "1 -> 2")} < set(edits(NEW))


def test_columns_count_in_bytes():
    text = 'x = "中文" if a == 1 else b\n'
    assert edits(text)[1, "== -> !="] == text.replace("==", "!=")


def test_draws_repeat_and_are_as_many_as_asked():
    assert edits(NEW, count=3) == edits(NEW, count=3)
    assert len(edits(NEW, count=3)) == 3


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        ('path = "y.py"\nfind = "a"\nreplace = "b"\nwhy = ""', "no file y.py"),
        ('path = "x.py"\nfind = "a"\nreplace = "b"', "key 'why' is missing"),
        (
            'path = "x.py"\nfind = "q"\nreplace = "b"\nwhy = ""',
            "occurs 0 times",
        ),
        ("path =", "mutants.toml: "),
    ],
)
def test_a_planned_mutant_that_cannot_be_made(tmp_path, entry, text):
    file = tmp_path / "mutants.toml"
    file.write_text(f"[[mutant]]\n{entry}\n")
    with pytest.raises(mutate.MutantError, match=text):
        mutate.planned(file, {"x.py": OLD})


def run(tmp_path, *jobs, workers=2):
    def task():
        return (
            yield [
                child.Job(f"job{i}", tmp_path, body, limit, dict(os.environ))
                for i, (body, limit) in enumerate(jobs)
            ]
        )

    return next(forks.Pool(workers).run([task()]))


def test_outcomes_in_order_with_output_and_value(tmp_path):
    def slow():
        time.sleep(0.2)
        print("slow")
        return {"cwd": os.getcwd()}

    def broken():
        raise RuntimeError("broken")

    first, second, third = run(
        tmp_path, (slow, 9), (broken, 9), (lambda: os._exit(0), 9)
    )
    assert first.value == {"cwd": str(tmp_path)} and first.stdout == "slow\n"
    assert second.value is None and "RuntimeError: broken" in second.stderr
    assert third.value is None and not third.timed_out


def test_a_late_child_is_killed_with_what_it_started(tmp_path):
    def hang():
        pid = os.fork()
        if pid == 0:
            (tmp_path / "pid").write_text(str(os.getpid()))
        time.sleep(60)

    started = time.monotonic()
    (late,) = run(tmp_path, (hang, 2))
    assert late.timed_out and late.value is None
    assert time.monotonic() - started < 10
    grandchild = int((tmp_path / "pid").read_text())
    for _ in range(100):
        try:
            os.kill(grandchild, 0)
            state = Path(f"/proc/{grandchild}/stat").read_text().split()[2]
        except (ProcessLookupError, FileNotFoundError):
            return
        if state == "Z":  # dead; nobody has asked for its exit code yet
            return
        time.sleep(0.05)
    pytest.fail("the process that the late child had started lives on")


def test_one_of_several_workers_begins_with_the_heaviest(tmp_path):
    def begun(workers):
        order = tmp_path / "order"
        order.write_text("")

        def task(name, weight):
            def body():
                with order.open("a") as file:
                    file.write(name)
                time.sleep(0.2)
                return {}

            job = child.Job(name, tmp_path, body, 9, dict(os.environ))
            yield [dataclasses.replace(job, weight=weight)]
            return name

        jobs = [("a", 1.0), ("b", 2.0), ("c", 9.0), ("d", 3.0)]
        found = [*forks.Pool(workers).run([task(*job) for job in jobs])]
        assert found == ["a", "b", "c", "d"]
        return order.read_text()

    assert begun(1) == "abcd"
    first, second = sorted(begun(2)[:2])
    assert (first, second) == ("a", "c")


def test_children_compute_with_threads_after_the_imports(tmp_path):
    """The parent's imports open no OpenMP region: a child would hang in its own."""
    code = """
import os, sys
from pathlib import Path
from tools.steplib import child, forks
from tools.steplib.preload import preload
preload(["torch transformers numpy"])
assert "transformers.models.qwen3.modeling_qwen3" in sys.modules
assert len(os.listdir("/proc/self/task")) == 1 or sys.platform != "linux"
def body():
    import torch
    return {"sum": float((torch.ones(600, 600) @ torch.ones(600, 600)).sum())}
def task():
    env = dict(os.environ)
    return (yield [child.Job("x", Path(sys.argv[1]), body, 30, env, threads=2)])[0]
outcome = next(forks.Pool(1).run([task()]))
assert outcome.value == {"sum": 600.0 ** 3}, outcome
"""

    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        cwd=Path(__file__).resolve().parents[2],
        env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
