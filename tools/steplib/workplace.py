"""Where jobs are prepared: a scratch folder, guarded, and the pool that runs them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.steplib import guard, sandbox
from tools.steplib.book import Book, Chapter
from tools.steplib.child import Job
from tools.steplib.forks import Pool
from tools.steplib.preload import preload

TESTS_LIMIT = 900.0


@dataclass(frozen=True)
class Workplace:
    """A scratch folder for build folders of `book`, and how jobs run there.

    workers: children at a time; each gets `threads` of the CPUs.
    model: what mains and tests run with, the default if empty.
    """

    book: Book
    work: Path
    hooks: Path
    workers: int
    threads: int
    model: str

    def build(self, chapter: Chapter) -> Path:
        """The chapter's build folder, made at the first call."""
        dest = self.work / chapter.id
        if not dest.is_dir():
            sandbox.make_build(self.book, chapter, dest)
        return dest

    def job(
        self,
        chapter: Chapter,
        build: Path,
        name: str,
        body: Callable[[], dict[str, Any]],
        limit: float,
    ) -> Job:
        """A job in `build` with the chapter's environment."""
        env = sandbox.environment(self.book, chapter, build, self.hooks)
        env = sandbox.quiet(env, self.threads, self.model)
        env[guard.LEAKS] = str(build.parent / f"{build.name}.{name}.leaks")
        return Job(name, build, body, limit, env, self.threads)

    def pool(self, chapters: list[Chapter]) -> Pool:
        """A pool whose parent has imported what these chapters import."""
        texts = {
            source
            for chapter in chapters
            for name, source in sandbox.inputs(self.book, chapter).items()
            if name.endswith(".py") and not name.startswith("tools/")
            if source.is_file()
        }
        # OpenMP and BLAS read these when they are imported, before any fork.
        os.environ.update(sandbox.quiet({}, self.threads, ""))
        preload([path.read_text(encoding="utf-8") for path in sorted(texts)])
        return Pool(self.workers)


@contextmanager
def workplace(
    book: Book, workers: int = 0, model: str = ""
) -> Iterator[Workplace]:
    """A workplace that is gone afterwards; with 0 workers, one a CPU."""
    cpus = _cpus()
    workers = workers or cpus
    with tempfile.TemporaryDirectory(prefix="steps-") as folder:
        work = Path(folder).resolve()
        hooks = sandbox.make_hooks(work)
        threads = max(1, cpus // workers)
        yield Workplace(book, work, hooks, workers, threads, model)


def _cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
