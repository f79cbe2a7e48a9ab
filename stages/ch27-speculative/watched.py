"""An LLM that notes what was guessed in each step, and what came of it."""

from typing import Any, NamedTuple

from minisgl.llm import LLM
from minisgl.scheduler.verify import Span, count_right


class Check(NamedTuple):
    """One draft: the tokens guessed, the model's choices, how many were right."""

    guessed: list[int]
    chosen: list[int]
    right: int


class WatchedLLM(LLM):
    """Counts steps, and keeps every draft that is checked.

    steps: batches run by the engine so far.
    checks: the drafts so far.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.steps, self.checks = 0, list[Check]()

    def _launch(self, forward_input: Any) -> Any:
        self.steps += forward_input is not None
        return super()._launch(forward_input)

    def _process_span(self, data: Any, span: Span) -> Any:
        count = len(span.draft.tokens)
        rows = slice(span.first, span.first + count + 1)
        chosen = data.output.next_tokens_cpu[rows].tolist()
        right = count_right(span.draft.tokens, chosen)
        if count:
            self.checks.append(Check(span.draft.tokens, chosen, right))
        return super()._process_span(data, span)

    def summary(self) -> str:
        """Steps, and how the drafts fared."""
        guessed = sum(len(check.guessed) for check in self.checks)
        right = sum(check.right for check in self.checks)
        return f"{self.steps:3} steps, {right:3} of {guessed:3} drafts right"
