"""From a form to a grammar over the model's tokens, by xgrammar."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from minisgl.structure.tags import ToolGrammar
from minisgl.tokenizer.logprobs import LogprobFormatter
from minisgl.tokenizer.text import load_light_tokenizer

if TYPE_CHECKING:
    import xgrammar as xgr

CompiledGrammar: TypeAlias = "xgr.CompiledGrammar"

_KEPT = 128
"""Grammars that are remembered."""

_THREADS = 4
"""Forms that are compiled at the same time."""

_SOURCE = re.compile(r"^\[[0-9:]+\] \S+:\d+: ")
"""In front of xgrammar's messages: when, and which line of it says so."""


_HEX = re.compile(r"\\(?:x([0-9a-fA-F]{2})|.)")
_CLASS = re.compile(r'"(?:[^"\\]|\\.)*"|\[\^|\\.')
"""Texts in quotes, which are left alone, or the head of a negated class."""

_NEVER = r"\0-\u001f\"\\"
"""What no character of a JSON string can be: it is escaped."""


class GrammarStore:
    """Compiles forms beside the scheduler, and keeps what came of the latest.

    A few threads do it: with one, a form that takes a minute would hold up all
    others, and with many, they would take the cores from what runs. xgrammar
    lets go of Python's lock while it works, and is imported with the first form.

    model_path: a folder or hub id, for its tokenizer.
    vocab_size: of the model, which may be larger than its tokenizer's.
    end_tokens: those that may follow a complete text, and nothing else.
    """

    def __init__(
        self, model_path: str, vocab_size: int, end_tokens: Collection[int]
    ) -> None:
        self._model_path, self._vocab_size = model_path, vocab_size
        self._ends = sorted(t for t in end_tokens if t < vocab_size)
        self._threads = ThreadPoolExecutor(_THREADS, "grammar")
        self._making = Lock()
        self._kept: dict[tuple[str, str], Future[CompiledGrammar]] = {}

    def compile(self, form: tuple[str, str]) -> Future[CompiledGrammar]:
        """The grammar of a form as `SamplingParams.form` names it, some day.

        The result may be a ValueError, which names the form's field: no such
        grammar can be made. Nobody else has to know of a future that is
        cancelled: who asks for that form again gets a new one.
        """
        found = self._kept.pop(form, None)
        if found is None or found.cancelled():
            found = self._threads.submit(self._compile, *form)
        self._kept[form] = found  # at the end: it was used last
        if len(self._kept) > _KEPT:
            del self._kept[next(iter(self._kept))]
        return found

    def _compile(self, name: str, text: str) -> CompiledGrammar:
        import xgrammar as xgr

        if not self._ends:
            raise ValueError(
                f"{name}: this model has no end token, so that no answer of "
                "a given form could end"
            )
        with self._making:  # from Python 3.12 on cached_property has no lock
            compiler = self._compiler
        try:
            compiled = compiler.compile_grammar(_parse(xgr, name, text))
        except RuntimeError as error:
            reason = _SOURCE.sub("", str(error).strip())
            raise ValueError(f"{name}: {reason}") from None
        if not self._begins(xgr, compiled):
            raise ValueError(f"{name}: no text of this model's tokens fits")
        return compiled

    @cached_property
    def _compiler(self) -> Any:
        import xgrammar as xgr

        tokens = token_bytes(self._model_path, self._vocab_size)
        info = xgr.TokenizerInfo(
            tokens,
            xgr.VocabType.RAW,
            vocab_size=self._vocab_size,
            stop_token_ids=self._ends,
        )
        return xgr.GrammarCompiler(info, max_threads=1, cache_enabled=False)

    def _begins(self, xgr: Any, compiled: CompiledGrammar) -> bool:
        """Whether there is a first token."""
        mask = torch.zeros(1, -(-self._vocab_size // 32), dtype=torch.int32)
        xgr.GrammarMatcher(compiled).fill_next_token_bitmask(mask)
        return bool(mask.any())


def token_bytes(model_path: str, vocab_size: int) -> list[bytes]:
    """What each token adds to a text; special ones and spare ids add nothing.

    What adds nothing is in no grammar: a form cannot be kept by tokens that the
    reader of the answer does not get to see.
    """
    formatter = LogprobFormatter(load_light_tokenizer(model_path))
    return [formatter.bytes_of(token, False) for token in range(vocab_size)]


def _parse(xgr: Any, name: str, text: str) -> xgr.Grammar:
    """The grammar of characters; RuntimeError if there is none."""
    grammar = xgr.Grammar
    if name == "json_schema":
        return grammar.from_ebnf(json_grammar(xgr, text))
    if name == "regex":
        return grammar.from_regex(text)
    if name == "choice":
        texts = (json.dumps(t, ensure_ascii=False) for t in json.loads(text))
        return grammar.from_ebnf(f"root ::= {' | '.join(texts)}\n")
    if name == "grammar":
        return grammar.from_ebnf(text)
    calls = ToolGrammar.from_json(text)
    tag = calls.structural_tag(lambda schema: json_grammar(xgr, schema))
    return grammar.from_structural_tag(json.dumps(tag))


def json_grammar(xgr: Any, schema: str) -> str:
    """EBNF of the JSON that is valid for a schema, on one line.

    A small model that may write spaces writes nothing else. What the schema
    leaves open stays open.

    xgrammar 0.2 needs help in two places. In strings of limited length, and in
    some patterns, it would let control characters through, which JSON has to
    escape. And its text cannot tell \\xdf before an e from \\xdfe.
    """
    made = xgr.Grammar.from_json_schema(
        schema, any_whitespace=False, strict_mode=False
    )
    text = _HEX.sub(
        lambda found: f"\\u00{found[1]}" if found[1] else found[0], str(made)
    )
    return _CLASS.sub(
        lambda found: found[0] + (_NEVER if found[0] == "[^" else ""), text
    )
