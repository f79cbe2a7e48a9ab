"""Chapter 11: LLM.generate."""

import io
import random
import sys

import pytest
import torch

from minisgl.core import SamplingParams
from minisgl.llm import LLM
from tests.driver import REFUSED
from tests.parity import assert_parity, model_under_test, prompts, reference

FOLDER = model_under_test("qwen3-tiny")
PROMPTS = prompts(FOLDER)
TEXTS = ["Hello there", "One two three four five", "x"]


def greedy(max_tokens: int, **more) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, ignore_eos=True, **more)


def drawn(seed: int | None, max_tokens: int = 20) -> SamplingParams:
    return greedy(max_tokens, temperature=1.0, seed=seed)


def make(**settings) -> LLM:
    settings = {"page_size": 4, "num_page_override": 512} | settings
    return LLM(str(FOLDER), "float32", device="cpu", **settings)


@pytest.fixture(scope="module")
def shared() -> LLM:
    return make(max_running_req=16)


@pytest.fixture
def llm(shared):
    """The one LLM of these tests; after each it is idle, and every page is there."""
    yield shared
    assert_idle(shared)


def assert_idle(llm: LLM) -> None:
    assert not llm.has_work
    assert not llm.inbox
    assert not llm._status
    assert llm.table_manager.available_size == llm.config.max_running_req
    manager = llm.cache_manager
    manager.check_integrity()
    assert manager.available_size == manager.num_pages * manager.page_size


def ids_of(results: list[dict]) -> list[list[int]]:
    assert [r["error"] for r in results] == [None] * len(results)
    return [r["token_ids"] for r in results]


def prefilled(llm: LLM, monkeypatch) -> list[int]:
    """Prompt tokens computed, one entry a prefill batch."""
    counts, run = [], llm.engine.forward_batch

    def counted(batch, args):
        if batch.is_prefill:
            counts.append(sum(req.extend_len for req in batch.reqs))
        return run(batch, args)

    monkeypatch.setattr(llm.engine, "forward_batch", counted)
    return counts


# Answers.


@pytest.mark.parity
@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_c15_answers_do_not_depend_on_the_batch(llm, count):
    chosen = random.Random(count).sample(PROMPTS[:8], count)
    for ids, prompt in zip(
        ids_of(llm.generate(chosen, greedy(64))), chosen, strict=True
    ):
        assert_parity(ids, reference(FOLDER, prompt, 64))


@pytest.mark.parity
def test_results_stand_in_the_order_of_the_prompts(llm):
    lengths = [9, 1, 5, 3]
    results = llm.generate(PROMPTS[:4], [greedy(n) for n in lengths])
    assert [len(r["token_ids"]) for r in results] == lengths
    for result, prompt, n in zip(results, PROMPTS[:4], lengths, strict=True):
        assert_parity(result["token_ids"], reference(FOLDER, prompt, n))
        assert result["finish_reason"] == "length"


def test_a_text_is_its_tokens(llm):
    ids = [llm.tokenizer(text).input_ids for text in TEXTS]
    by_text = llm.generate(TEXTS, greedy(12))
    assert by_text == llm.generate(ids, greedy(12))
    for result, prompt in zip(by_text, ids, strict=True):
        assert_parity(result["token_ids"], reference(FOLDER, prompt, 12))
        text = llm.tokenizer.decode(
            result["token_ids"], skip_special_tokens=True
        )
        assert result["text"] == text


def test_special_tokens_do_not_show_in_the_text(llm, monkeypatch):
    special = llm.tokenizer.all_special_ids[0]
    monkeypatch.setattr(llm.engine.sampler, "processors", [lambda batch: force])

    def force(logits):
        logits = logits.clone()
        logits[:, special] = 1e9
        return logits

    [result] = llm.generate([PROMPTS[0]], greedy(3))
    assert result["token_ids"] == [special] * 3
    assert result["text"] == ""


def test_without_parameters_it_is_greedy_to_the_end_token(llm):
    [result] = llm.generate([PROMPTS[2]], progress=False)
    expected = reference(FOLDER, PROMPTS[2], 1024, ignore_eos=False)
    assert result["token_ids"][:64] == expected.ids[:64]
    assert result["finish_reason"] in ("stop", "length")


def test_no_prompts_no_results(llm):
    assert llm.generate([], greedy(3)) == []
    assert llm.generate([], []) == []
    assert llm.generate([]) == []


@pytest.mark.parametrize("overlap", [True, False])
def test_c11_finish_reasons(overlap, monkeypatch):
    llm = make(overlap=overlap)
    phases, run = [], llm.engine.forward_batch

    def noted(batch, args):
        phases.append(batch.phase)
        return run(batch, args)

    monkeypatch.setattr(llm.engine, "forward_batch", noted)
    [one] = llm.generate([PROMPTS[4]], SamplingParams(max_tokens=1))
    assert len(one["token_ids"]) == 1
    assert one["finish_reason"] == "length"
    assert phases == ["prefill"]

    ids = reference(FOLDER, PROMPTS[4], 32).ids
    n = next(i for i in range(8, 32) if ids[i] not in ids[:i]) + 1
    llm.eos_token_ids = frozenset([ids[n - 1]])
    asked = [n, n - 1, n + 5]
    results = llm.generate(
        [PROMPTS[4]] * 3, [SamplingParams(max_tokens=m) for m in asked]
    )
    assert [r["finish_reason"] for r in results] == ["stop", "length", "stop"]
    assert ids_of(results) == [ids[:n], ids[: n - 1], ids[:n]]
    for wrong in (0, -1):
        with pytest.raises(ValueError, match="max_tokens must be at least 1"):
            SamplingParams(max_tokens=wrong)
    assert_idle(llm)


def test_c13_a_seed_belongs_to_its_request(llm):
    prompt, others = PROMPTS[0], PROMPTS[-6:]
    alone = ids_of(llm.generate([prompt], drawn(42)))[0]
    again = ids_of(llm.generate([prompt], drawn(42)))[0]
    # Beside six others, greedy and drawn, with seeds and without.
    wishes = [
        drawn(42),
        drawn(1),
        greedy(20),
        drawn(None),
        drawn(42),
        greedy(5),
    ]
    mixed = llm.generate([prompt, *others], [*wishes, drawn(None)])
    assert alone == again == mixed[0]["token_ids"]
    assert_parity(mixed[2]["token_ids"], reference(FOLDER, others[1], 20))
    assert_parity(mixed[5]["token_ids"], reference(FOLDER, others[4], 5))
    assert len(set(alone)) > 1
    assert any(
        ids_of(llm.generate([p], drawn(42)))
        != ids_of(llm.generate([p], drawn(43)))
        for p in PROMPTS[:3]
    )
    unseeded = ids_of(llm.generate([prompt] * 4, drawn(None)))
    assert len({tuple(ids) for ids in unseeded}) > 1


def test_overlap_changes_no_message(monkeypatch):
    # Same requests, greedy and seeded: the same messages, request by request.
    wishes = [greedy(7), drawn(3), greedy(1), drawn(4, 9), greedy(12)]
    streams = {}
    for overlap in (True, False):
        llm = make(overlap=overlap, max_running_req=3, max_extend_tokens=16)
        streams[overlap] = {uid: [] for uid in range(5)}
        send = llm.send_result

        def noted(reply, overlap=overlap, send=send):
            for msg in reply:
                streams[overlap][msg.uid].append(msg)
            send(reply)

        monkeypatch.setattr(llm, "send_result", noted)
        results = llm.generate(PROMPTS[3:8], wishes)
        for uid, result in enumerate(results):
            messages = streams[overlap][uid]
            assert [m.next_token for m in messages] == result["token_ids"]
            ends = [m.finished for m in messages]
            assert ends == [False] * (len(ends) - 1) + [True]
        assert_idle(llm)
    assert streams[True] == streams[False]


# Calls one after the other.


def test_the_second_call_reuses_the_first_ones_prefix(llm, monkeypatch):
    prompt = [(7 * i) % 400 for i in range(90)]
    counts = prefilled(llm, monkeypatch)
    first = llm.generate([prompt], greedy(5))
    second = llm.generate([prompt], greedy(5))
    assert counts == [90, 90 - 88]  # whole pages of 4, the last token always
    assert first == second
    assert_parity(first[0]["token_ids"], reference(FOLDER, prompt, 5))


def test_calls_do_not_touch_earlier_results(llm):
    first = llm.generate(PROMPTS[:2], greedy(4))
    kept = [list(r["token_ids"]) for r in first]
    llm.generate(PROMPTS[2:4], greedy(4))
    assert ids_of(first) == kept


def test_two_llms_in_one_process():
    one, two = make(), make(page_size=1)
    for llm in (one, two, one):
        [ids] = ids_of(llm.generate([PROMPTS[5]], greedy(6)))
        assert_parity(ids, reference(FOLDER, PROMPTS[5], 6))


# What cannot be answered.


def test_a_request_fails_alone(llm):
    limit, vocab = llm.engine.max_seq_len, llm.engine.sampler.vocab_size
    good = PROMPTS[3]
    bad = {
        "the prompt is empty; send at least one token": [],
        f"leaves no room to answer: the context holds {limit}": [1] * limit,
        f"token {vocab} is not in the vocabulary of {vocab}": [5, vocab],
        f"token -1 is not in the vocabulary of {vocab}": [-1],
        f"token 1.5 is not in the vocabulary of {vocab}": [2, 1.5],
        f"token 'a' is not in the vocabulary of {vocab}": ["a"],
    }
    results = llm.generate([good, *bad.values(), good, ""], greedy(4))
    for result, message in zip(results[1:], bad, strict=False):
        assert message in result["error"]
        assert result["finish_reason"] in REFUSED
        assert result["token_ids"] == []
        assert result["text"] == ""
    for result in (results[0], results[-2]):
        assert result["error"] is None
        assert_parity(result["token_ids"], reference(FOLDER, good, 4))
    if not llm.tokenizer("").input_ids:
        assert "the prompt is empty" in results[-1]["error"]


def test_the_last_id_of_the_vocabulary_is_a_token(llm):
    size = llm.engine.sampler.vocab_size
    [result] = llm.generate([[0, size - 1]], greedy(3))
    assert result["error"] is None


def test_what_never_fits_the_pool_names_both_numbers():
    llm = make(num_page_override=10)
    results = llm.generate([[1] * 30, [1] * 30], [greedy(11), greedy(10)])
    assert "may need 41 tokens, the KV pool holds 40" in results[0]["error"]
    assert results[1]["error"] is None
    assert_idle(llm)


def test_a_row_that_is_not_finite_fails_alone(llm, monkeypatch):
    def poison(batch):
        bad = [i for i, req in enumerate(batch.reqs) if req.device_len == 18]

        def edit(logits):
            return logits.index_fill(0, torch.tensor(bad), float("nan"))

        return edit if bad else None

    monkeypatch.setattr(llm.engine.sampler, "processors", [poison])
    # A prompt of 17: its second token is the bad one. (`input_ids` would not do:
    # the host is a token behind.)
    chosen = [[3] * 5, [4] * 17, [5] * 9]
    results = llm.generate(chosen, greedy(6))
    assert [r["finish_reason"] for r in results] == [
        "length",
        "error",
        "length",
    ]
    assert "not finite" in results[1]["error"]
    assert len(results[1]["token_ids"]) == 1
    for i in (0, 2):
        assert_parity(results[i]["token_ids"], reference(FOLDER, chosen[i], 6))


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (("one text", None), TypeError, r"write \[prompt\]"),
        (([1, 2, 3], None), TypeError, "not int; for a single one"),
        (([[1], None], None), TypeError, "not NoneType"),
        ((["a", "b"], [SamplingParams()]), ValueError, "2 prompts but 1 para"),
        ((["a"], []), ValueError, "1 prompts but 0 para"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_runs(
    llm, arguments, error, text
):
    with pytest.raises(error, match=text):
        llm.generate(*arguments)


# Ctrl-C.

PLACES = [
    ("engine.forward_batch", 3),
    ("cache_manager.allocate_paged", 2),
    ("cache_manager.cache_req", 2),
    ("cache_manager._free", 3),
    ("table_manager.free", 1),
    ("prefill_manager.add_one_req", 2),
    ("send_result", 4),
    ("receive_msg", 3),
    ("tokenizer", 2),
]


@pytest.mark.parametrize(("place", "call"), PLACES, ids=[p for p, _ in PLACES])
def test_an_interrupt_anywhere_leaves_nothing_behind(
    llm, place, call, monkeypatch
):
    owner = llm
    *path, name = place.split(".")
    for part in path:
        owner = getattr(owner, part)
    original, calls = getattr(owner, name), []

    def interrupted(*args, **kwargs):
        calls.append(name)
        if len(calls) == call:
            raise KeyboardInterrupt
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, interrupted)
    wishes = [greedy(n) for n in (2, 6, 9, 4)]
    with pytest.raises(KeyboardInterrupt):
        llm.generate([*TEXTS[:2], *PROMPTS[5:7]], wishes)
    assert len(calls) == call
    monkeypatch.undo()
    assert_idle(llm)
    for ids, prompt in zip(
        ids_of(llm.generate(PROMPTS[4:7], greedy(6))), PROMPTS[4:7], strict=True
    ):
        assert_parity(ids, reference(FOLDER, prompt, 6))


# The progress bar.


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "progress", "shown"),
    [
        (Terminal, True, True),
        (Terminal, False, False),
        (io.StringIO, True, False),
    ],
)
def test_the_bar_is_for_a_terminal(
    llm, stream, progress, shown, monkeypatch, capsys
):
    for name in (
        "NO_COLOR",
        "FORCE_COLOR",
        "TTY_COMPATIBLE",
        "TTY_INTERACTIVE",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    screen = stream()
    monkeypatch.setattr(sys, "stderr", screen)
    llm.generate([PROMPTS[1], [], [-1]], greedy(2), progress=progress)
    assert ("Generating" in screen.getvalue()) == shown
    if shown:
        assert "100%" in screen.getvalue()
    assert capsys.readouterr().out == ""


def test_a_bar_is_the_default(llm, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    llm.generate([PROMPTS[1]], greedy(2))
    assert "Generating" in screen.getvalue()
