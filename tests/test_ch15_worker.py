"""Chapter 15: what the tokenizer process passes on beside text."""

from dataclasses import replace

import pytest

from minisgl.message import (
    AbortBackendMsg,
    AbortMsg,
    BaseFrontendMsg,
    BatchTokenizerMsg,
    DetokenizeMsg,
    StatusBackendMsg,
    StatusMsg,
    StatusReply,
    StatusResultMsg,
    TokenLogprob,
)
from minisgl.tokenizer.server import _Worker
from minisgl.tokenizer.text import load_light_tokenizer
from tests.driver import Driver
from tests.worker import Worker
from tools.models import model_path

TEXT = "Hello 你好 🎉"
NUMBERS = {"running": 1, "waiting": 0, "free_pages": 7}


@pytest.fixture(scope="module")
def tokenizer():
    return load_light_tokenizer(str(model_path("qwen3-tiny")))


def answer(tokenizer, uid: int = 1, count: int | None = 2) -> list:
    """The text as the scheduler's messages, with `count` alternatives."""
    ids = tokenizer.encode(TEXT)
    msgs = []
    for i, token in enumerate(ids):
        last = i == len(ids) - 1
        msg = DetokenizeMsg(uid, token, last, "stop" if last else None)
        if count is not None:
            others = list(range(count))
            msg.logprobs = TokenLogprob(-1.5, others, [-float(i)] * count)
        msgs.append(msg)
    msgs[0].prompt_tokens, msgs[0].cached_tokens = 30, 16
    return msgs


def test_replies_count_tokens_and_carry_what_the_scheduler_said(tokenizer):
    worker = _Worker(tokenizer, "")
    msgs = answer(tokenizer)
    worker.handle([*msgs, DetokenizeMsg(2, -1, True, "error", "why")])
    *replies, failed = worker.to_frontend
    assert "".join(r.incremental_output for r in replies) == TEXT
    assert "" in [r.incremental_output for r in replies], "🎉 is held back"
    # Held back or not, each token is counted and has its logprobs at once.
    assert [r.completion_tokens for r in replies] == [1] * len(msgs)
    prompts = [(r.prompt_tokens, r.cached_tokens) for r in replies]
    assert prompts == [(30, 16)] + [(None, None)] * (len(msgs) - 1)
    entries = [entry for reply in replies for entry in reply.logprobs]
    assert len(entries) == len(msgs)
    raw = b"".join(bytes(entry["bytes"]) for entry in entries)
    assert raw == TEXT.encode()
    assert {entry["logprob"] for entry in entries} == {-1.5}
    assert [len(entry["top_logprobs"]) for entry in entries] == [2] * len(msgs)
    assert (failed.completion_tokens, failed.logprobs) == (0, None)
    assert (failed.finish_reason, failed.error) == ("error", "why")


def test_without_logprobs_there_are_none(tokenizer):
    worker = _Worker(tokenizer, "")
    worker.handle(answer(tokenizer, count=None))
    assert {reply.logprobs for reply in worker.to_frontend} == {None}


def test_a_space_is_missing_in_front_of_the_first_token_only(tmp_path):
    from tests.vocabularies import LLAMA, write_metaspace

    folder = write_metaspace(tmp_path / "m", **LLAMA)
    spaced = load_light_tokenizer(str(folder))
    worker = _Worker(spaced, "")
    for uid in (1, 2):  # a new request begins anew
        msgs = []
        for token in spaced.encode("the the", add_special_tokens=False):
            told = TokenLogprob(-1.0, [token], [-1.0])
            msgs.append(DetokenizeMsg(uid, token, False, logprobs=told))
        worker.handle(msgs)
        entries = [e for r in worker.to_frontend for e in r.logprobs]
        assert "".join(entry["token"] for entry in entries) == "the the"
        assert entries[0]["top_logprobs"][0]["token"] == entries[0]["token"]
        worker.to_frontend.clear()
        worker.handle([AbortMsg(uid)])


def test_questions_and_answers_about_the_scheduler_pass_through(tokenizer):
    worker = _Worker(tokenizer, "")
    worker.handle([StatusMsg(7), AbortMsg(3), StatusResultMsg(7, NUMBERS)])
    assert worker.to_backend == [StatusBackendMsg(7), AbortBackendMsg(3)]
    assert worker.to_frontend == [StatusReply(7, NUMBERS)]


def test_through_a_process(tokenizer, tmp_path_factory):
    scratch = tmp_path_factory.mktemp("w")
    with Worker(scratch, model_path("qwen3-tiny")) as worker:
        worker.put(StatusMsg(9))
        assert worker.next_request() == StatusBackendMsg(9)
        worker.put(StatusResultMsg(9, NUMBERS))
        assert worker.next_reply() == StatusReply(9, NUMBERS)
        worker.put(BatchTokenizerMsg(answer(tokenizer)))
        here = _Worker(tokenizer, "")
        here.handle(answer(tokenizer))
        for expected in here.to_frontend:
            reply: BaseFrontendMsg = worker.next_reply()
            assert reply == expected
        worker.assert_ends()


@pytest.mark.parametrize("own_process", [True, False])
def test_c10_a_detokenizer_of_its_own_hears_of_an_abort(
    own_process, tokenizer, monkeypatch
):
    driver = Driver(model_path("qwen3-tiny"))
    link = property(lambda self: own_process)
    name = "backend_create_detokenizer_link"
    monkeypatch.setattr(type(driver.scheduler.config), name, link)
    served = replace(driver.scheduler.config, offline_mode=False)
    monkeypatch.setattr(driver.scheduler, "config", served)
    driver.submit(1, tokenizer.encode(TEXT), max_tokens=50)
    sent = driver.step() + driver.step() + driver.step()
    driver.scheduler.inbox += [AbortBackendMsg(1), AbortBackendMsg(2)]
    driver.data = driver.scheduler.step(driver.data)
    told, driver.scheduler.outbox = driver.scheduler.outbox, []
    assert told == ([AbortMsg(1)] if own_process else [])
    worker = _Worker(tokenizer, "")
    worker.handle(sent)
    assert worker.detokenize_manager.decode_map
    worker.handle(told)
    assert bool(worker.detokenize_manager.decode_map) == (not own_process)
    driver.run()
    driver.assert_every_page()
