"""What a request may ask of sampling, checked when it is made."""

from __future__ import annotations

import json
import math
import re
import sys
from dataclasses import dataclass, field

from minisgl.structure.regex import check_regex
from minisgl.structure.schema import MOST_TEXT, check_schema_text
from minisgl.structure.tags import ToolGrammar

MOST_IDS = 300
"""Most entries of logit_bias and of stop_token_ids."""

MOST_LOGPROBS = 20
"""Most alternatives that a token's logprobs can list."""

FORMS = ("json_schema", "regex", "choice", "grammar", "tool_calls")
"""Fields of which each is a form that the answer shall have."""

_TOKEN_ID = re.compile("0|[1-9][0-9]{0,9}")


@dataclass
class SamplingParams:
    """How the tokens of one request are chosen and when it ends.

    What the second group asks for is done to the logits first, in this order.

    temperature: 0 is greedy; otherwise logits are divided by it.
    top_k: keep the k likeliest tokens; 0, -1 or beyond the vocabulary is off.
    top_p: keep the smallest set whose probability reaches it, in (0, 1].
    ignore_eos: do not stop at an end token.
    max_tokens: most tokens to generate, the end token included.
    min_p: drop tokens less likely than min_p times the likeliest, in [0, 1].
    seed: makes the draws of this request repeatable, whatever runs beside it.

    repetition_penalty: above 0; divides the logits of all tokens of prompt and
        answer that are positive, and multiplies those that are negative.
    frequency_penalty: subtracted for every time a token is in the answer;
        from -2 to 2.
    presence_penalty: subtracted once if a token is in the answer; -2 to 2.
    logit_bias: added to a token's logit, by the token's id as a text; from -100,
        which bans the token, to 100.

    stop_token_ids: end the request like end tokens, also with `ignore_eos`.
    logprobs: report each token's log-probability, and so many of the likeliest
        tokens beside it, up to 20; None is off.

    At most one of these may be given. The answer, up to its end token, then is

    json_schema: JSON that is valid for this schema, which is JSON itself.
    regex: a text that all of this expression matches.
    choice: one of these texts.
    grammar: a text of this grammar in EBNF, from its rule `root` on.
    tool_calls: what a `ToolGrammar` describes, as JSON.

    Raises:
        ValueError: a value out of range; the message names the field.
    """

    temperature: float = 0.0
    top_k: int = -1
    top_p: float = 1.0
    ignore_eos: bool = False
    max_tokens: int = 1024
    min_p: float = 0.0
    seed: int | None = None
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: dict[str, float] = field(default_factory=dict)
    stop_token_ids: list[int] = field(default_factory=list)
    logprobs: int | None = None
    json_schema: str | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    tool_calls: str | None = None

    def __post_init__(self) -> None:
        _check_number("temperature", self.temperature, 0.0, math.inf)
        _check_number("top_p", self.top_p, 0.0, 1.0, above=True)
        _check_number("min_p", self.min_p, 0.0, 1.0)
        _check_int("top_k", self.top_k, -1)
        _check_int("max_tokens", self.max_tokens, 1)
        if self.seed is not None:
            _check_int("seed", self.seed, -(2**63), 2**63 - 1)
        self._check_edits()
        _check_size("stop_token_ids", self.stop_token_ids, list)
        for token in self.stop_token_ids:
            _check_int("stop_token_ids", token, 0)
        if self.logprobs is not None:
            _check_int("logprobs", self.logprobs, 0, MOST_LOGPROBS)
        self._check_form()

    def _check_edits(self) -> None:
        """What is asked of the logits themselves."""
        repetition = self.repetition_penalty
        _check_number("repetition_penalty", repetition, 0.0, math.inf, True)
        for name in ("frequency_penalty", "presence_penalty"):
            _check_number(name, getattr(self, name), -2.0, 2.0)
        _check_size("logit_bias", self.logit_bias, dict)
        for token, bias in self.logit_bias.items():
            if not isinstance(token, str) or not _TOKEN_ID.fullmatch(token):
                raise ValueError(
                    "logit_bias must have token ids as text for its keys, "
                    f"got {token!r}"
                )
            _check_number(f"logit_bias of token {token}", bias, -100.0, 100.0)

    def _check_form(self) -> None:
        """What the answer has to look like."""
        given = [name for name in FORMS if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"{given[1]} cannot stand beside {given[0]}")
        for name in given:
            value = getattr(self, name)
            texts = value if name == "choice" else [value]
            if not isinstance(texts, list) or not texts:
                raise ValueError("choice must be a list that is not empty")
            if not all(isinstance(t, str) and t for t in texts):
                how = "; use json.dumps" if name == "json_schema" else ""
                raise ValueError(f"{name} must be text that is not empty{how}")
            if (size := sum(map(len, texts))) > MOST_TEXT:
                raise ValueError(
                    f"{name} must have at most {MOST_TEXT} characters, "
                    f"got {size}"
                )
            try:
                if name == "json_schema":
                    check_schema_text(value)
                if name == "regex":
                    check_regex(value)
                if name == "tool_calls":
                    ToolGrammar.check(value)
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None

    @property
    def form(self) -> tuple[str, str] | None:
        """Which form the answer shall have, and its text; None: any."""
        for name in FORMS:
            if (value := getattr(self, name)) is not None:
                text = json.dumps(value) if name == "choice" else value
                return name, text
        return None

    def check_tokens(self, vocab_size: int) -> None:
        """Whether the model has the tokens that are spoken of.

        Raises:
            ValueError: it has not; the message names the field.
        """
        for name in ("logit_bias", "stop_token_ids"):
            for token in getattr(self, name):
                if int(token) >= vocab_size:
                    raise ValueError(
                        f"{name} must have tokens of the vocabulary of "
                        f"{vocab_size}, got {token}"
                    )

    @property
    def is_greedy(self) -> bool:
        """Whether every draw would be the likeliest token."""
        return self.temperature == 0.0 or self.top_k == 1

    @property
    def has_penalties(self) -> bool:
        """Whether what a request has so far changes its logits."""
        frequency, presence = self.frequency_penalty, self.presence_penalty
        return self.repetition_penalty != 1.0 or bool(frequency or presence)


def _check_number(
    name: str, value: float, low: float, high: float, above: bool = False
) -> None:
    """A finite number in [low, high], or in (low, high] with `above`."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    # An integer may be too large for a float, and is then not finite either.
    if not number or not -sys.float_info.max <= value <= sys.float_info.max:
        raise ValueError(f"{name} must be a finite number, got {value!r}")
    if not low <= value <= high or (above and value == low):
        least = f"greater than {low:g}" if above else f"at least {low:g}"
        most = "" if high == math.inf else f" and at most {high:g}"
        raise ValueError(f"{name} must be {least}{most}, got {value!r}")


def _check_int(
    name: str, value: int, low: int, high: int | None = None
) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{name} must be an integer, got {value!r}")
    if value < low or (high is not None and value > high):
        most = "" if high is None else f" and at most {high}"
        raise ValueError(f"{name} must be at least {low}{most}, got {value}")


def _check_size(
    name: str, value: list[int] | dict[str, float], kind: type
) -> None:
    """A list or dict that is not too long."""
    if not isinstance(value, kind):
        raise ValueError(f"{name} must be a {kind.__name__}, got {value!r}")
    if len(value) > MOST_IDS:
        raise ValueError(
            f"{name} must have at most {MOST_IDS} entries, got {len(value)}"
        )
