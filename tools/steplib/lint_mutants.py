"""The rule about mutants: the line that one changes is in the chapter, once.

Only `check --full` runs them, long after a fix may have changed such a line.
"""

from __future__ import annotations

from tools.steplib import mutate
from tools.steplib.book import ManifestError
from tools.steplib.lint import Lint


def check(lint: Lint) -> None:
    """Apply the rule of this module."""
    for chapter in lint.book.chapters:
        try:
            mutate.planned(chapter.mutants, mutate.texts_of(lint.book, chapter))
        except ManifestError:
            continue  # the rule about files names what is missing
        except mutate.MutantError as error:
            lint.report(chapter.mutants, 1, chapter, str(error))
