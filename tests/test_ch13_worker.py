"""Chapter 13: the tokenizer process, from text to tokens and from tokens to text."""

import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from minisgl.message import (
    AbortBackendMsg,
    AbortMsg,
    BaseTokenizerMsg,
    BatchTokenizerMsg,
    DetokenizeMsg,
    TokenizeMsg,
    UserReply,
)
from minisgl.sampling_params import SamplingParams
from minisgl.tokenizer.server import _Worker
from minisgl.tokenizer.text import load_light_tokenizer
from tests.driver import Driver
from tests.parity import assert_parity, model_under_test, reference
from tests.vocabularies import full_text, pair_of
from tests.worker import Worker
from tools.models import model_path
from tools.stagekit import encode_chat

PARAMS = SamplingParams(temperature=0.5, top_k=7, max_tokens=9, seed=3)
GREEDY = SamplingParams(max_tokens=24, ignore_eos=True)
TEXT = "Once upon a time 🎉 你好"


@pytest.fixture
def scratch(tmp_path_factory):
    return tmp_path_factory.mktemp("w")


@pytest.fixture(scope="module")
def folder():
    return model_path("qwen3-tiny")


def ask(uid: int, text: object = "Hello") -> TokenizeMsg:
    return TokenizeMsg(uid, text, PARAMS)


def answer(uid: int, ids: list[int], reason: str = "length") -> list:
    last = len(ids) - 1
    return [
        DetokenizeMsg(uid, token, i == last, reason if i == last else None)
        for i, token in enumerate(ids)
    ]


@pytest.mark.parametrize("create", [True, False])
def test_requests_go_in_and_text_comes_out(scratch, folder, create):
    theirs = pair_of(folder).theirs
    chat = [{"role": "user", "content": TEXT}]
    with Worker(scratch, folder, create, tokenizer_id=3) as worker:
        assert worker.ready.get(timeout=30) == "tokenizer-3 is ready"
        worker.put(ask(1, TEXT), ask(2, chat), ask(3, [5, 6, 7]))
        ids = [theirs(TEXT).input_ids, encode_chat(theirs, TEXT), [5, 6, 7]]
        for uid, expected in enumerate(ids, 1):
            request = worker.next_request()
            assert request.uid == uid
            assert request.input_ids.tolist() == expected
            assert str(request.input_ids.dtype) == "torch.int32"
            assert request.sampling_params == PARAMS
        for msg in answer(1, ids[0], "stop"):
            worker.put(msg)
            reply = worker.next_reply()
            assert type(reply) is UserReply and reply.uid == 1
            ending = (msg.finished, msg.finish_reason, None)
            assert (reply.finished, reply.finish_reason, reply.error) == ending
        worker.put(*answer(2, ids[0]))
        assert worker.text(2) == TEXT
        worker.assert_ends()


@pytest.mark.parity
def test_a_chat_goes_all_the_way_round(scratch):
    folder = model_under_test("llama3-tiny")
    theirs = pair_of(folder).theirs
    questions = ["Who are you?", "你好", "Name a cat."]
    driver = Driver(folder, overlap=True, pages=512)
    with Worker(scratch, folder) as worker:
        for uid, text in enumerate(questions):
            turns = [{"role": "user", "content": text}]
            worker.put(TokenizeMsg(uid, turns, GREEDY))
        for _ in questions:
            msg = worker.next_request()
            driver.submit(msg.uid, msg.input_ids.tolist(), 24)
        while not driver.idle:
            worker.put(BatchTokenizerMsg(driver.step()))
        replies: dict[int, list[UserReply]] = {0: [], 1: [], 2: []}
        while not all(r and r[-1].finished for r in replies.values()):
            reply = worker.next_reply()
            replies[reply.uid].append(reply)
        worker.assert_ends()
    for uid, text in enumerate(questions):
        prompt = encode_chat(theirs, text)
        assert driver.prompts[uid] == prompt
        expected = reference(folder, prompt, 24)
        assert_parity(driver.answers[uid], expected)
        assert len(replies[uid]) == 24
        said = "".join(r.incremental_output for r in replies[uid])
        assert said == full_text(theirs, driver.answers[uid])


def test_it_starts_with_messages_waiting_and_takes_no_more_than_it_should(
    scratch, folder
):
    theirs = pair_of(folder).theirs
    ids = theirs(TEXT).input_ids
    with Worker(scratch, folder, create=False, local_bs=4) as worker:
        for uid in range(10):
            worker.put(BatchTokenizerMsg([ask(2 * uid), ask(2 * uid + 1)]))
        tokens = [answer(uid, ids) for uid in range(20)]
        for group in zip(*tokens, strict=True):
            for msg in group:
                worker.put(msg)
        assert [worker.next_request().uid for _ in range(20)] == [*range(20)]
        sizes, texts = [], dict.fromkeys(range(20), "")
        while sum(sizes) < 20 * len(ids):
            assert not worker.replies
            reply = worker.next_reply()
            sizes.append(1 + len(worker.replies))
            for one in [reply, *worker.replies]:
                texts[one.uid] += one.incremental_output
            worker.replies.clear()
        assert max(sizes) == 4
        assert {*texts.values()} == {TEXT}
        worker.assert_ends()


def test_what_is_wrong_is_answered_and_the_process_lives(
    scratch, folder, capfd
):
    bad = {
        1: (5, "a prompt is no int"),
        2: ([], "a chat is a list of turns"),
        3: ([{"role": "user"}], "the chat template fails: UndefinedError"),
        4: ([{"role": "user", "content": [1]}], "TypeError"),
        5: ([-7], "-7 is no token id"),
        6: (None, "a prompt is no NoneType"),
    }
    with Worker(scratch, folder) as worker:
        raw = [b"", b"\xc1", b"\x81\xa8__type__\xa8UserMsg1", b"\x91" * 3000]
        for one in raw:
            worker.inbox.put_raw(one)
        msgs = [ask(uid, text) for uid, (text, _) in bad.items()]
        worker.put(BatchTokenizerMsg([ask(0), *msgs, ask(7)]))
        for uid, (_, reason) in bad.items():
            reply = worker.next_reply()
            assert (reply.uid, reply.incremental_output) == (uid, "")
            assert reply.finished and reply.finish_reason == "refused"
            assert reason in reply.error and "\n" not in reply.error
        worker.put(BatchTokenizerMsg([]), BaseTokenizerMsg())
        worker.put(DetokenizeMsg(8, "a", False), DetokenizeMsg(8, 70, True))
        reply = worker.next_reply()
        assert (reply.uid, reply.finished) == (8, True)
        assert reply.finish_reason == "error" and "TypeError" in reply.error
        assert [worker.next_request().uid for _ in "ab"] == [0, 7]
        assert worker.next_request() == AbortBackendMsg(8)
        worker.put(ask(9), *answer(10, [70, 71]))
        assert worker.next_request().uid == 9
        assert worker.next_reply().uid == 8  # its late token, without text
        assert worker.text(10) == "gh"
        worker.assert_ends()
    log = capfd.readouterr().err
    assert log.count("skipped: ") == len(raw)
    assert "request 5: -7 is no token id" in log
    assert "ignored, not for here: BaseTokenizerMsg()" in log
    assert "Traceback" not in log


def test_without_a_chat_template_texts_are_still_answered(scratch, folder):
    bare = scratch / "bare"
    bare.mkdir()
    for name in ("config.json", "tokenizer.json"):
        shutil.copy(folder / name, bare / name)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    del config["chat_template"]
    (bare / "tokenizer_config.json").write_text(json.dumps(config))
    with Worker(scratch, bare) as worker:
        worker.put(ask(1, [{"role": "user", "content": "Hi"}]), ask(2))
        reply = worker.next_reply()
        assert (reply.uid, reply.finish_reason) == (1, "refused")
        assert "has no chat template: send a text to" in reply.error
        assert worker.next_request().uid == 2
        worker.assert_ends()


def test_an_abort_comes_after_its_request_and_ends_its_text(scratch, folder):
    with Worker(scratch, folder) as worker:
        batch = [ask(1), AbortMsg(1), ask(2), AbortMsg(77), ask(3)]
        worker.put(BatchTokenizerMsg(batch))
        got = [worker.next_request() for _ in batch]
        assert [msg.uid for msg in got] == [1, 1, 2, 77, 3]
        assert got[1] == AbortBackendMsg(1) and got[3] == AbortBackendMsg(77)
        worker.put(*answer(2, [70, 71, 72])[:2], AbortMsg(2))
        worker.put(*answer(2, [70, 71, 72])[2:], *answer(3, [73]))
        texts = [worker.next_reply() for _ in range(4)]
        assert [r.incremental_output for r in texts] == ["g", "h", "", "j"]
        assert worker.next_request() == AbortBackendMsg(2)
        worker.assert_ends()


def test_c10_nothing_is_kept_of_requests_that_are_over(folder):
    worker = _Worker(load_light_tokenizer(str(folder)), "")
    for uid in range(0, 300, 3):
        worker.handle([ask(uid), *answer(uid, [70, 71])])
        worker.handle([*answer(uid + 1, [70, 71])[:1], AbortMsg(uid + 1)])
        worker.handle(answer(uid + 1, [70, 71])[1:])
        failed = DetokenizeMsg(uid + 2, -1, True, "error", "no")
        worker.handle([*answer(uid + 2, [240, 71])[:1], failed])
    assert not worker.detokenize_manager.decode_map
    worker.handle([DetokenizeMsg(1000, None, False)])
    assert not worker.detokenize_manager.decode_map


def test_ctrl_c_is_for_the_parent(scratch, folder):
    with Worker(scratch, folder) as worker:
        worker.put(ask(1))
        assert worker.next_request().uid == 1
        for _ in range(3):
            os.kill(worker.process.pid, signal.SIGINT)
        worker.put(ask(2))
        assert worker.next_request().uid == 2
        worker.assert_ends()


def test_it_ends_in_the_middle_of_its_work(scratch, folder):
    with Worker(scratch, folder) as worker:
        for uid in range(500):
            worker.put(ask(uid, TEXT * 200))
        assert worker.next_request().uid == 0
        worker.assert_ends()


def test_c32_it_computes_in_one_thread(scratch, folder):
    with Worker(scratch, folder) as worker:
        worker.put(
            BatchTokenizerMsg([ask(uid, TEXT * 50) for uid in range(50)])
        )
        for _ in range(50):
            worker.next_request()
        tasks = Path(f"/proc/{worker.process.pid}/task")
        if tasks.is_dir():
            spent = {t.name: cpu_ticks(t) for t in tasks.iterdir()}
            busy = [t for t, ticks in spent.items() if ticks > 20]
            assert busy in ([], [str(worker.process.pid)])
        worker.assert_ends()


def cpu_ticks(task: Path) -> int:
    """Hundredths of a second that a thread has computed."""
    fields = (task / "stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"tokenizer_path": "no/where"}, "'no/where' is not a folder"),
        ({"tokenizer_path": os.curdir}, "has no tokenizer.json"),
        ({"model_source": "attic"}, "no model source 'attic'; fetch the model"),
    ],
)
def test_a_wrong_start_is_one_line_and_status_1(
    scratch, folder, settings, line, capfd, monkeypatch
):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with Worker(scratch, folder, tokenizer_id=1, **settings) as worker:
        assert worker.last_words().startswith("exit tokenizer-1: ")
        assert worker.process.exitcode == 1
        assert worker.ready.empty()
    said = capfd.readouterr().err.splitlines()
    assert [text for text in said if "tokenizer-1" in text] == said[-1:]
    assert line in said[-1]
