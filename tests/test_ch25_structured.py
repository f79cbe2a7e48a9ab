"""Grammars in the engine: masks, waiting, overlap, ranks; others do not notice."""

import json
import math
import threading
import time
from concurrent.futures import Future
from functools import cache

import pytest
import torch
import xgrammar as xgr

from minisgl.engine.constrain import GrammarRow, mask_logits
from minisgl.llm import LLM
from minisgl.sampling_params import SamplingParams
from minisgl.scheduler import structured
from minisgl.scheduler.structured import StructuredScheduler
from minisgl.structure import compile as compile_module
from minisgl.structure.compile import GrammarStore, token_bytes
from minisgl.utils import load_eos_token_ids
from tests.driver import Driver
from tests.parity import model_under_test, prompts
from tests.prompts import random_prompt
from tests.tp import Job, run_ranks
from tools.structured_cases import many, obj, text, whole

FOLDER = model_under_test("qwen3-tiny")
SCHEMA = json.dumps(obj(name=text(6), tags=many({"enum": ["a", "é"]}, 3, 1)))
FORMS = [
    {"json_schema": SCHEMA},
    {"regex": "[0-9]{3}-[a-f]{2,9}"},
    {"choice": ["yes", "no", "größe"]},
    {"grammar": 'root ::= x x x\nx ::= "ab" | "c"'},
]
ENDED = {"ignore_eos": False}


def form_of(fields: dict) -> tuple[str, str]:
    found = SamplingParams(**fields).form
    assert found is not None
    return found


@cache
def store() -> GrammarStore:
    ends = load_eos_token_ids(str(FOLDER))
    return GrammarStore(str(FOLDER), 512, ends)


@cache
def model():
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32)


def masked_answer(ids, fields, most: int) -> list[int]:
    """Greedy tokens of transformers, of those that a grammar allows."""
    matcher = xgr.GrammarMatcher(store().compile(form_of(fields)).result())
    mask, found = torch.empty(1, 16, dtype=torch.int32), []
    while len(found) < most and not matcher.is_terminated():
        matcher.fill_next_token_bitmask(mask)
        with torch.no_grad():
            logits = model()(torch.tensor([[*ids, *found]])).logits[0, -1]
        allowed = ((mask.view(-1, 1) >> torch.arange(32)) & 1).flatten().bool()
        logits[~allowed] = -torch.inf
        found.append(int(logits.argmax()))
        assert matcher.accept_token(found[-1])
    return found


def driver(**settings) -> Driver:
    return Driver(FOLDER, scheduler=StructuredScheduler, **settings)


def texts(run: Driver) -> dict[int, str]:
    vocabulary = token_bytes(str(FOLDER), 512)
    return {
        uid: b"".join(vocabulary[t] for t in tokens).decode(errors="replace")
        for uid, tokens in run.answers.items()
    }


@pytest.mark.parity
@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("budget", [8192, 7])
def test_rows_beside_forms_keep_their_tokens_and_forms_theirs(overlap, budget):
    run = driver(overlap=overlap, max_extend_tokens=budget, page_size=4)
    some = prompts("qwen3-tiny")
    for i, fields in enumerate(FORMS):
        run.submit(i, some[i % len(some)], 40, **fields, **ENDED)
        run.submit(10 + i, some[i % len(some)], 24)
    run.run()
    run.assert_parity(10, 11, 12, 13)
    for i, fields in enumerate(FORMS):
        ids = some[i % len(some)]
        assert run.answers[i] == masked_answer(ids, fields, 40)
    said = texts(run)
    if run.ended[0].finish_reason == "stop":
        assert json.loads(said[0])["tags"]
    assert said[2] in ("yes", "no", "größe")
    run.assert_every_page()


@pytest.mark.parametrize("fields", FORMS)
def test_drawn_answers_are_of_the_form_and_of_their_seed(fields):
    found = []
    for beside in (0, 3):
        run = driver(overlap=True)
        for i in range(beside):
            run.submit(10 + i, random_prompt(i, 9), 30, temperature=1.0)
        ways = {"top_k": 40, "top_p": 0.9, "frequency_penalty": 1.0}
        ways |= {"temperature": 2.0, "seed": 5, "logit_bias": {"65": 5.0}}
        run.submit(0, random_prompt(99, 12), 60, **fields, **ways, **ENDED)
        run.run()
        found.append(run.answers[0])
        assert run.ended[0].finish_reason == "stop"
        matcher = xgr.GrammarMatcher(store().compile(form_of(fields)).result())
        assert all(matcher.accept_token(token) for token in run.answers[0])
        assert matcher.is_terminated()
    assert found[0] == found[1]


def test_masks_leave_only_what_is_allowed():
    masks = torch.tensor([[0b101, 1 << 1], [0, 0]], dtype=torch.int32)
    masks[1, 1] = -(2**31)  # its last bit
    logits = torch.arange(128.0).view(2, 64)[:, :64].clone()
    found = mask_logits(logits, masks)
    assert torch.isfinite(found).nonzero().tolist() == [
        [0, 0],
        [0, 2],
        [0, 33],
        [1, 63],
    ]
    assert found[0, 33] == 33.0
    logits[0, [0, 2, 33]] = -torch.inf  # all of them banned
    found = mask_logits(logits[:1], masks[:1])
    assert found[0, [0, 2, 33]].tolist() == [0.0] * 3
    failed = torch.full((1, 40), torch.nan)  # a vocabulary that fills no word
    assert mask_logits(failed, masks[:1])[0, 0].isnan()


def test_a_form_goes_before_a_ban_and_logprobs_are_the_models():
    run = driver(overlap=True)
    bans = {str(t): -100.0 for t in range(256)}
    fields = {"choice": ["yes"], "logit_bias": bans, "logprobs": 2}
    run.submit(0, random_prompt(1, 8), 20, **fields, **ENDED)
    run.submit(1, random_prompt(1, 8), 1, logprobs=2)
    logprobs = {}
    while not run.idle:
        for msg in run.step():
            if msg.logprobs is not None:
                logprobs.setdefault(msg.uid, msg.logprobs)
    assert texts(run)[0] == "yes" and run.ended[0].finish_reason == "stop"
    assert logprobs[0].top_ids == logprobs[1].top_ids
    assert logprobs[0].logprob < logprobs[1].logprob


def test_after_the_form_only_end_tokens_follow():
    run = driver(overlap=True)
    ends = load_eos_token_ids(str(FOLDER))
    run.submit(0, random_prompt(3, 8), 12, choice=["ab"])
    run.submit(1, random_prompt(3, 8), 1, choice=["ab"])
    run.run()
    assert len(run.answers[0]) == 12
    at = next(i for i, t in enumerate(run.answers[0]) if t in ends)
    assert texts(run)[0][:2] == "ab"
    assert set(run.answers[0][at:]) <= ends
    assert len(run.answers[1]) == 1
    run.assert_every_page()


@pytest.fixture
def gated(monkeypatch):
    """Opens what holds up the compiling of ``slow``; what was begun."""
    gate, begun, compiling = threading.Event(), [], GrammarStore._compile

    def slow(self, name, text):
        begun.append(text)
        if text == "slow":
            assert gate.wait(60)
        return compiling(self, name, text)

    monkeypatch.setattr(GrammarStore, "_compile", slow)
    yield gate, begun
    gate.set()  # a process ends when its threads have


def test_who_waits_for_a_grammar_is_overtaken_and_can_be_aborted(gated):
    gate, _ = gated
    run = driver(overlap=True)
    for uid in (0, 1):
        run.submit(uid, random_prompt(1, 9), 8, regex="slow", **ENDED)
    run.submit(2, random_prompt(2, 9), 8)
    while 2 not in run.ended:
        run.step()
    assert not run.answers[0] and 0 not in run.ended
    assert run.scheduler.has_work and not run.idle
    run.abort(1)
    run.step()
    run.submit(3, random_prompt(2, 9), 8)
    while 3 not in run.ended:
        run.step()
    gate.set()
    run.run()
    assert texts(run)[0] == "slow" and not run.answers[1]
    run.assert_every_page()


def step_until(run: Driver, uid: int) -> None:
    until = time.monotonic() + 60
    while uid not in run.ended:
        assert time.monotonic() < until
        run.step()


def test_a_form_that_takes_long_holds_up_no_other_form(gated):
    gate, _ = gated
    run = driver(overlap=True)
    run.submit(0, random_prompt(1, 9), 8, regex="slow", **ENDED)
    for uid in (1, 2, 3):
        run.submit(uid, random_prompt(1, 9), 8, regex=f"a{uid}", **ENDED)
    for uid in (1, 2, 3):
        step_until(run, uid)
    assert 0 not in run.ended
    gate.set()
    run.run()
    assert list(texts(run).values()) == ["slow", "a1", "a2", "a3"]
    run.assert_every_page()


def test_what_takes_too_long_to_compile_is_refused(gated, monkeypatch):
    monkeypatch.setattr(structured, "_LIMIT", 1.0)
    gate, begun = gated
    run = driver(overlap=True)
    run.submit(0, random_prompt(1, 9), 8, regex="slow", **ENDED)
    run.submit(1, random_prompt(2, 9), 8)
    step_until(run, 0)
    assert run.ended[0].finish_reason == "refused"
    assert run.ended[0].error == (
        "regex: this takes longer than 1 seconds to prepare; simplify it"
    )
    assert not run.scheduler._compiling
    # Whoever asks again waits in his turn, and is served when it is there.
    monkeypatch.setattr(structured, "_LIMIT", 60.0)
    run.submit(2, random_prompt(1, 9), 8, regex="slow", **ENDED)
    run.step()
    gate.set()
    run.run()
    run.submit(3, random_prompt(1, 9), 8, regex="slow", **ENDED)
    run.run()
    assert texts(run)[2] == texts(run)[3] == "slow" and begun == ["slow"]
    run.assert_parity(1)
    run.assert_every_page()


def test_what_no_thread_was_free_for_is_not_at_fault(gated, monkeypatch):
    monkeypatch.setattr(compile_module, "_THREADS", 1)
    monkeypatch.setattr(structured, "_LIMIT", 1.0)
    gate, begun = gated
    run = driver(overlap=True)
    run.submit(0, random_prompt(1, 9), 8, regex="slow", **ENDED)
    run.submit(1, random_prompt(1, 9), 8, regex="fast", **ENDED)
    run.run()
    assert run.ended[0].finish_reason == "refused"
    assert run.ended[1].finish_reason == "error"
    assert run.ended[1].error == (
        "regex: other requests' forms have kept this one waiting for 1 "
        "seconds; try again later"
    )
    gate.set()
    monkeypatch.setattr(structured, "_LIMIT", 60.0)
    run.submit(2, random_prompt(1, 9), 8, regex="last", **ENDED)
    run.run()
    assert begun == ["slow", "last"]  # nobody waited for the other any more
    run.submit(3, random_prompt(1, 9), 8, regex="fast", **ENDED)
    run.run()
    assert texts(run)[3] == "fast"
    run.assert_every_page()


def test_nothing_is_compiled_for_requests_that_have_been_aborted(
    gated, monkeypatch
):
    monkeypatch.setattr(compile_module, "_THREADS", 1)
    gate, begun = gated
    run = driver(overlap=True)
    forms = ["slow", "left", "kept", "kept"]
    for uid, form in enumerate(forms):
        run.submit(uid, random_prompt(1, 9), 8, regex=form, **ENDED)
    run.step()
    for uid in (0, 1, 2):  # another request still waits for what 2 did
        run.abort(uid)
    run.step()
    assert [pending.uid for pending in run.scheduler._compiling] == [3]
    gate.set()
    run.run()
    assert begun == ["slow", "kept"] and texts(run)[3] == "kept"
    run.submit(4, random_prompt(1, 9), 8, regex="left", **ENDED)
    run.run()
    assert texts(run)[4] == "left"
    assert not run.answers[0] and not run.answers[1]
    run.assert_every_page()


def test_the_tokens_are_read_once_for_all_threads(monkeypatch):
    reading, read = token_bytes, []

    def slow(*args):
        read.append(args)
        time.sleep(0.1)
        return reading(*args)

    monkeypatch.setattr(compile_module, "token_bytes", slow)
    ends = load_eos_token_ids(str(FOLDER))
    made = GrammarStore(str(FOLDER), 520, ends)
    for found in [made.compile(("regex", f"a{i}")) for i in range(8)]:
        found.result(60)
    # Another test's thread may still read those of its own.
    assert [size for _, size in read].count(520) == 1


def test_only_the_latest_forms_are_remembered(monkeypatch):
    monkeypatch.setattr(compile_module, "_KEPT", 2)
    made = GrammarStore(str(FOLDER), 512, load_eos_token_ids(str(FOLDER)))
    first, second = (made.compile(("regex", text)) for text in "ab")
    assert made.compile(("regex", "a")) is first  # now b is the oldest
    made.compile(("regex", "c"))
    assert made.compile(("regex", "a")) is first
    assert made.compile(("regex", "b")) is not second


def test_a_form_is_compiled_once(monkeypatch):
    compiled, compiling = [], GrammarStore._compile

    def counted(self, name, text):
        compiled.append(text)
        return compiling(self, name, text)

    monkeypatch.setattr(GrammarStore, "_compile", counted)
    run = driver(overlap=True)
    for uid in range(3):
        run.submit(uid, random_prompt(1, 9), 8, regex="a{2}", **ENDED)
    run.run()
    run.submit(3, random_prompt(1, 9), 8, regex="a{2}", **ENDED)
    run.submit(4, random_prompt(1, 9), 8, regex="a{3}", **ENDED)
    run.run()
    assert compiled == ["a{2}", "a{3}"]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"grammar": 'root ::= "a" x'},
            'grammar: EBNF parser error at line 1, column 14: Rule "x"',
        ),
        ({"grammar": 'main ::= "a"'}, "root rule"),
        (
            {"grammar": "root ::= root"},
            "grammar: no text of this model's tokens",
        ),
        ({"regex": "a{,3}"}, "regex: Regex parsing error at position 3"),
    ],
)
def test_what_cannot_be_compiled_is_refused_and_others_go_on(fields, said):
    run = driver(overlap=True)
    run.submit(0, random_prompt(1, 9), 8, **fields)
    run.submit(1, random_prompt(1, 9), 8)
    run.run()
    assert run.ended[0].finish_reason == "refused"
    assert said in run.ended[0].error and "/cpp/" not in run.ended[0].error
    assert len(run.answers[1]) == 8
    run.assert_every_page()


@pytest.mark.parametrize("overlap", [True, False])
def test_a_grammar_without_a_way_on_is_at_fault_itself(overlap):
    run = driver(overlap=overlap)
    dead = 'root ::= "a" x\nx ::= x "b"'
    run.submit(0, random_prompt(1, 9), 8, grammar=dead)
    run.submit(1, random_prompt(1, 9), 8)
    run.run()
    assert run.ended[0].finish_reason == "refused"
    assert run.ended[0].error.startswith("grammar: none of this model's tokens")
    assert texts(run)[0] == "a" and len(run.answers[1]) == 8
    run.assert_every_page()


def test_aborts_and_ends_in_flight_leave_nothing_behind():
    run = driver(overlap=True, page_size=4, pages=256)
    for uid in range(6):
        fields = {"json_schema": SCHEMA} if uid % 2 else {}
        run.submit(uid, random_prompt(uid, 9 + uid), 30, **fields, **ENDED)
    for step in range(12):
        run.step()
        if step in (2, 5, 8):
            run.abort(step // 2)
    run.run()
    run.assert_every_page()
    processor = run.scheduler.processor
    run.scheduler.inflight._held.clear()
    del run
    assert len(processor._rows) == 0


def test_a_token_that_was_not_allowed_ends_a_row():
    compiled = store().compile(("choice", '["ab"]')).result()
    end = torch.zeros(16, dtype=torch.int32)
    end[15] = 1 << 30
    row, masks = (
        GrammarRow(compiled, end),
        torch.zeros(1, 16, dtype=torch.int32),
    )
    row.fill(masks, 0)
    assert masks.any() and not torch.equal(masks[0], end)
    row.accept(0)  # what stands for the token of a row that has failed
    row.fill(masks, 0)
    assert torch.equal(masks[0], end)


def test_special_tokens_and_spare_ids_are_in_no_form():
    found = token_bytes(str(FOLDER), 600)
    ends = load_eos_token_ids(str(FOLDER))
    assert all(found[token] == b"" for token in [*ends, *range(512, 600)])
    assert found[65] != b"" and len(found) == 600


def test_offline_answers_have_the_form():
    llm = LLM(str(FOLDER), "float32", device="cpu", num_page_override=512)
    params = [SamplingParams(max_tokens=60, **fields) for fields in FORMS]
    params += [
        SamplingParams(max_tokens=5),
        SamplingParams(max_tokens=9, grammar="x"),
    ]
    found = llm.generate([[1, 2, 3]] * 6, params, progress=False)
    assert found[2]["text"] in ("yes", "no", "größe")
    assert found[4]["finish_reason"] == "length"
    assert found[5]["finish_reason"] == "refused"
    assert found[5]["error"].startswith("grammar: ")


def test_two_ranks_take_a_request_in_before_the_same_step(tmp_path):
    requests = [
        (random_prompt(i, 9), {"max_tokens": 20} | ENDED | fields)
        for i, fields in enumerate([*FORMS, {}, {"grammar": "root ::= y"}])
    ]
    one = run_ranks(
        FOLDER,
        2,
        [Job(requests, at=[0, 1, 2, 3, 0, 4], abort_at={3: 9})],
        tmp_path,
        scheduler="minisgl.scheduler.structured:StructuredScheduler",
    )
    assert one[0]["jobs"] == one[1]["jobs"]
    answers = one[0]["jobs"][0]["answers"]
    for i in range(3):
        expected = masked_answer(requests[i][0], FORMS[i], 20)
        assert answers[i] == expected
    assert answers[4] and not answers[5]


class LateOnRank0(StructuredScheduler):
    """Rank 0 has no time for forms, and rank 1 all there is."""

    def _admit(self, msg):
        super()._admit(msg)
        for pending in self._compiling:
            never = pending.sampling_params.form == ("regex", "slow")
            if self.config.tp_info.rank > 0:
                pending.deadline = 0.0 if not never else math.inf
            elif never:
                pending.grammar, pending.deadline = Future(), 0.0
            else:
                pending.deadline = math.inf


def test_two_ranks_give_up_before_the_same_step(tmp_path):
    asked = [{"regex": "slow"}, {}, {"regex": "fast"}, {"regex": "slow"}]
    requests = [
        (random_prompt(i, 9), {"max_tokens": 12} | ENDED | fields)
        for i, fields in enumerate(asked)
    ]
    one = run_ranks(
        FOLDER,
        2,
        [Job(requests, at=[0, 0, 1, 3])],
        tmp_path,
        scheduler="tests.test_ch25_structured:LateOnRank0",
    )
    assert one[0]["jobs"] == one[1]["jobs"]
    answers = one[0]["jobs"][0]["answers"]
    assert not answers[0] and not answers[3] and answers[1]
    assert answers[2] == masked_answer(requests[2][0], asked[2], 12)


@pytest.mark.slow
def test_every_schema_is_valid_from_a_small_model():
    from tools.bench_structured import answers, problem
    from tools.models import model_path
    from tools.structured_cases import CASES

    llm = LLM(
        str(model_path("smollm2-135m")),
        "float32",
        device="cpu",
        num_page_override=16384,
    )
    assert len(CASES) == 25
    for temperature in (0.0, 1.0):
        pairs = zip(CASES, answers(llm, temperature), strict=True)
        wrong = {case[0]: problem(case, found) for case, found in pairs}
        assert not any(wrong.values()), wrong


def test_whole_numbers_stay_in_their_range():
    llm = LLM(str(FOLDER), "float32", device="cpu", num_page_override=512)
    schema = json.dumps(many(whole(-12, 345), 4, 4))
    params = SamplingParams(1.0, max_tokens=60, json_schema=schema, seed=3)
    for answer in llm.generate([[i] for i in range(6)], params, progress=False):
        numbers = json.loads(answer["text"])
        assert len(numbers) == 4 and all(-12 <= n <= 345 for n in numbers)
