"""Continuous batching: who comes in when, who leaves, and nothing else changes."""

import random
import subprocess
import sys

import pytest
import torch

from minisgl.core import Batch, SamplingParams
from minisgl.distributed import DistributedInfo
from minisgl.engine import FAILED_TOKEN
from minisgl.message import BaseBackendMsg, ExitMsg, UserMsg
from minisgl.scheduler import Scheduler, SchedulerConfig
from minisgl.scheduler.decode import DecodeManager
from minisgl.scheduler.inputs import make_inputs
from minisgl.scheduler.utils import fit_request
from tests.driver import REFUSED, Driver, poison, solo
from tests.handmade import make_req
from tests.parity import model_under_test, prompts, reference
from tools.models import model_path
from tools.stagekit import encode_chat, load_tokenizer
from tools.zoo.places import models_dir

TINY = model_path("qwen3-tiny")
FIXED = prompts(
    "qwen3-tiny"
)  # of 1, 3, 7, 16, 17, 33, 50, 64, 77 and 100 tokens


# --- Parity: arrivals, batches and budgets change nothing ---


@pytest.mark.parity
@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_staggered_arrivals(page_size):
    driver = Driver(TINY, page_size=page_size, max_running_req=4)
    for uid, ids in enumerate(FIXED):
        driver.submit(uid, ids, 40)
        driver.step()
        driver.step()
    driver.run()
    driver.assert_parity(length=40)
    driver.assert_clean()
    largest = max(len(step.tokens) for step in driver.decodes())
    assert largest == 4


@pytest.mark.parity
def test_requests_of_one_batch_end_one_by_one():
    driver = Driver(TINY)
    for uid, ids in enumerate(FIXED[:6]):
        driver.submit(uid, ids, 1 + 3 * uid)
    driver.run()
    driver.assert_parity()
    driver.assert_clean()
    assert [len(driver.answers[uid]) for uid in range(6)] == [
        1,
        4,
        7,
        10,
        13,
        16,
    ]
    sizes = [len(step.tokens) for step in driver.decodes()]
    assert sizes == [5] * 3 + [4] * 3 + [3] * 3 + [2] * 3 + [1] * 3


@pytest.mark.parity
@pytest.mark.parametrize("budget", [1, 7, 49, 50, 51, 100, 1000])
def test_c01_a_prompt_over_the_budget_runs(budget):
    driver = Driver(TINY, max_extend_tokens=budget)
    driver.submit(0, FIXED[6], 16)
    driver.submit(1, FIXED[5], 16)
    driver.run()
    assert (len(FIXED[6]), len(FIXED[5])) == (50, 33)
    driver.assert_parity(length=16)
    driver.assert_clean()


@pytest.mark.parity
def test_staggered_arrivals_of_the_model_under_test():
    folder = model_under_test("llama3-tiny")
    driver = Driver(folder, page_size=4, max_running_req=3)
    for uid, ids in enumerate(prompts(folder)[:5]):
        driver.submit(uid, ids, 8)
        driver.step()
    driver.run()
    driver.assert_parity(length=8)
    driver.assert_clean()


# --- Steps: what runs next ---


def test_a_new_prompt_runs_before_the_next_decode():
    driver = Driver(TINY)
    driver.submit(0, FIXED[2], 20)
    for _ in range(4):
        driver.step()
    driver.submit(1, FIXED[3], 20)
    driver.step()
    driver.step()
    phases = [(step.phase, *step.tokens.items()) for step in driver.steps]
    decode = ("decode", (0, 1))
    prefills = [("prefill", (0, 7)), ("prefill", (1, 16))]
    assert phases == [
        prefills[0], decode, decode, decode, prefills[1], ("decode", (0, 1), (1, 1)),
    ]  # fmt: skip


def test_prompts_share_a_step_up_to_the_budget():
    driver = Driver(TINY, max_extend_tokens=23)
    for uid in range(3):
        driver.submit(uid, FIXED[2 + uid], 1)
    driver.run()
    assert [step.tokens for step in driver.steps] == [{0: 7, 1: 16}, {2: 17}]


@pytest.mark.until("ch10", "prompts are then cut to fit the budget")
def test_whole_prompts_only_and_the_first_may_exceed_the_budget():
    driver = Driver(TINY, max_extend_tokens=40)
    for uid, which in enumerate([4, 5, 2, 6, 1]):  # of 17, 33, 7, 50, 3 tokens
        driver.submit(uid, FIXED[which], 1)
    driver.run()
    steps = [step.tokens for step in driver.steps]
    assert steps == [{0: 17}, {1: 33, 2: 7}, {3: 50}, {4: 3}]


def test_requests_run_in_the_order_they_came():
    driver = Driver(TINY, max_running_req=2)
    for uid in (5, 3, 9, 1):
        driver.submit(uid, FIXED[2], 4)
    driver.run()
    assert [uid for step in driver.prefills() for uid in step.tokens] == [
        5,
        3,
        9,
        1,
    ]
    assert all([*step.tokens] in ([5, 3], [9, 1]) for step in driver.steps)


def test_a_decode_batch_is_in_order_of_length():
    driver = Driver(TINY)
    for uid, which in enumerate([5, 2, 3, 2]):  # of 33, 7, 16 and 7 tokens
        driver.submit(uid, FIXED[which], 3)
    driver.run()
    assert all([*step.tokens] == [1, 3, 2, 0] for step in driver.decodes())
    driver.assert_parity(length=3)


def test_a_step_without_work_does_nothing():
    driver = Driver(TINY)
    assert driver.idle
    assert driver.step() == []
    assert driver.steps == []
    driver.assert_clean()


# --- Admission ---


@pytest.mark.parametrize(
    ("ids", "max_tokens", "numbers"),
    [
        (FIXED[7], 10, ["64 tokens", "holds 64"]),  # no room for an answer
        (FIXED[9], 1, ["100 tokens", "holds 64"]),
        (FIXED[5], 16, ["49 tokens", "holds 48"]),  # the context would do
        ([], 1, ["empty"]),
        ([5, 512], 1, ["token 512", "vocabulary of 512"]),
        ([511, -1], 1, ["token -1", "vocabulary of 512"]),
    ],
)
def test_what_can_never_fit_is_refused_at_once(ids, max_tokens, numbers):
    driver = Driver(TINY, page_size=4, pages=12, max_seq_len_override=64)
    driver.submit(0, ids, max_tokens)
    driver.submit(1, FIXED[2], 3)
    sent = driver.step()
    refusal = next(msg for msg in sent if msg.uid == 0)
    assert refusal.finished and refusal.finish_reason in REFUSED
    assert refusal.next_token == FAILED_TOKEN
    assert all(number in refusal.error for number in numbers), refusal.error
    assert "\n" not in refusal.error
    assert len(driver.answers[1]) == 1, "the one behind it ran in the same step"
    driver.run()
    driver.assert_parity(1, length=3)
    driver.assert_clean()


@pytest.mark.parity
@pytest.mark.parametrize(
    ("ids", "max_tokens"), [(FIXED[5], 15), (FIXED[3], 32)]
)
def test_what_fits_exactly_is_served(ids, max_tokens):
    driver = Driver(TINY, page_size=4, pages=12)
    driver.submit(0, ids, max_tokens)
    assert len(ids) + max_tokens == 48
    driver.run()
    driver.assert_parity(0, length=max_tokens)


def test_an_answer_is_cut_to_what_the_context_leaves():
    driver = Driver(TINY, max_seq_len_override=64)
    driver.submit(0, FIXED[6], 1000)
    driver.submit(1, FIXED[6], 14)
    driver.run()
    assert driver.answers[0] == driver.answers[1]
    assert [driver.ended[uid].finish_reason for uid in (0, 1)] == ["length"] * 2
    driver.assert_parity(0, length=14)


def test_fitting_a_request_leaves_its_other_wishes_and_the_message_alone():
    params = SamplingParams(temperature=0.5, top_k=3, seed=7, max_tokens=99)
    msg = UserMsg(4, torch.arange(10, dtype=torch.int32), params)
    fitted = fit_request(msg, max_seq_len=50, pool_tokens=50, vocab_size=10)
    assert fitted.sampling_params == SamplingParams(
        temperature=0.5, top_k=3, seed=7, max_tokens=40
    )
    assert msg.sampling_params.max_tokens == 99
    with pytest.raises(ValueError, match=r"10 tokens.*holds 10"):
        fit_request(msg, max_seq_len=10, pool_tokens=50, vocab_size=10)


@pytest.mark.parametrize(
    ("max_tokens", "context", "pool", "fitted"),
    [
        (2**31 - 1, 50, 49, 39),
        (40, 50, 49, 39),  # all that the context leaves
        (39, 50, 49, 39),
        (2**31 - 1, 50, 11, 1),
        (5, 50, 15, 5),
        (39, 50, 48, None),
        (2**31 - 1, 50, 10, None),
        (6, 50, 15, None),
    ],
)
def test_who_wants_as_many_as_fit_gets_what_the_pool_leaves(
    max_tokens, context, pool, fitted
):
    params = SamplingParams(max_tokens=max_tokens)
    msg = UserMsg(4, torch.arange(10, dtype=torch.int32), params)
    if fitted is not None:
        got = fit_request(msg, context, pool, vocab_size=10)
        assert got.sampling_params.max_tokens == fitted
        return
    with pytest.raises(ValueError, match=rf"need \d+ tokens.*holds {pool}"):
        fit_request(msg, context, pool, vocab_size=10)


def test_as_many_as_fit_fill_the_pool():
    driver = Driver(TINY, page_size=4, pages=12)
    driver.submit(0, FIXED[4], 2**31 - 1)
    driver.run()
    driver.assert_parity(0, length=48 - len(FIXED[4]))
    assert driver.ended[0].finish_reason == "length"


def test_a_request_waits_for_a_row():
    driver = Driver(TINY, max_running_req=2)
    for uid in range(3):
        driver.submit(uid, FIXED[2], 3)
    driver.run()
    assert [step.tokens.keys() for step in driver.prefills()] == [{0, 1}, {2}]
    assert [driver.answers[uid] for uid in (1, 2)] == [driver.answers[0]] * 2


@pytest.mark.parametrize(
    ("max_tokens", "waits"), [(33, False), (34, True)], ids=["fits", "waits"]
)
def test_a_request_waits_for_what_others_may_still_ask_for(max_tokens, waits):
    end = solo(TINY, FIXED[4], 8).ids[-1]
    driver = Driver(TINY, pages=110, ends=[end])
    driver.submit(0, FIXED[4], 60, ignore_eos=False)  # 77, but it stops after 8
    driver.step()
    driver.step()
    driver.submit(1, FIXED[0][:1], max_tokens - 1)
    driver.step()
    assert (driver.answers[1] == []) == waits
    assert 0 not in driver.ended
    driver.run()
    driver.assert_parity(1, length=max_tokens - 1)
    assert driver.ended[0].finish_reason == "stop"
    assert len(driver.answers[0]) <= 8


def test_a_small_request_does_not_pass_a_waiting_one():
    driver = Driver(TINY, pages=100)
    driver.submit(0, FIXED[2], 13)  # 20 tokens
    driver.submit(1, FIXED[3], 65)  # 81: has to wait
    driver.submit(2, FIXED[1], 2)  # 5: would fit
    driver.step()
    driver.step()
    assert [*driver.answers.values()][1:] == [[], []]


@pytest.mark.parity
@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_c03_decode_never_runs_out_of_pages(page_size):
    """No retraction here: admission alone has to prevent it.

    Until ch08 the pool only shrinks, so that some requests wait for ever.
    """
    rng = random.Random(page_size)
    driver = Driver(TINY, page_size=page_size, pages=320 // page_size)
    for uid in range(24):
        driver.submit(uid, rng.choice(FIXED), rng.randint(1, 64))
    before = -1
    while before < len(driver.steps):
        before = len(driver.steps)
        driver.step()  # raises if a page is missing
    assert not driver.scheduler.decode_manager.runnable, (
        "admitted, but not served"
    )
    served = [uid for uid, answer in driver.answers.items() if answer]
    assert served == [*range(len(served))]
    assert len(served) >= 3
    for uid in served:
        assert driver.ended[uid].finish_reason == "length"
    driver.assert_parity(*served)


@pytest.mark.until("ch08", "pages come back")
def test_the_pool_only_shrinks_and_then_nothing_moves():
    driver = Driver(TINY, pages=100)
    for uid in range(3):
        driver.submit(uid, FIXED[5], 7)  # 39 tokens each are stored
    for _ in range(50):
        driver.step()
    assert [len(driver.answers[uid]) for uid in range(3)] == [7, 7, 0]
    assert driver.scheduler.cache_manager.available_size == 22
    assert driver.scheduler.has_work


def test_a_page_is_reserved_as_a_whole():
    manager = DecodeManager(page_size=4)
    assert (manager.inflight_tokens, manager.runnable) == (0, False)
    reqs = [make_req(range(5), 0, 4), make_req(range(8), 1, 1)]
    for req in reqs:
        req.complete_one()
    manager.filter_reqs(reqs)
    # The first has 5 of at most 9 tokens: of 3 pages it holds 2. The other one's
    # answer is complete, so it is not taken in.
    assert [*manager.running_reqs] == [0]
    assert manager.inflight_tokens == 4
    for _ in range(3):
        reqs[0].complete_one()
    manager.filter_reqs([])
    assert not manager.runnable
    manager.filter_reqs([make_req(range(8), 2, 9)])
    assert manager.inflight_tokens == 20, (
        "not computed yet, so it holds nothing"
    )


# --- Endings ---


def test_c11_one_token_needs_no_decode_step():
    driver = Driver(TINY)
    driver.submit(0, FIXED[3], 1)
    driver.run()
    driver.assert_parity(0, length=1)
    assert driver.ended[0].finish_reason == "length"
    assert [step.phase for step in driver.steps] == ["prefill"]
    driver.assert_clean()


def natural(model):
    """A prompt whose answer ends by itself, the end tokens, and its length."""
    if model == "qwen3-tiny":
        ids = FIXED[4]
        answer = solo(TINY, ids, 40).ids
        at = next(i for i in range(10, 40) if answer[i] not in answer[:i])
        return ids, [answer[at]], at + 1
    ids = encode_chat(load_tokenizer(model_path(model)), "What is 2+2?")
    return ids, None, len(reference(model, ids, 64, ignore_eos=False).ids)


@pytest.mark.parity
@pytest.mark.parametrize("model", ["qwen3-tiny", "smollm2-135m"])
def test_c11_the_end_token_counts_and_says_stop(model):
    if not (models_dir() / model).exists():
        pytest.skip(
            f"{model} is not here: python tools/models.py fetch {model}"
        )
    ids, ends, length = natural(model)
    driver = Driver(model_path(model), ends=ends, pages=1024)
    asked = {"N": length, "N-1": length - 1, "N+5": length + 5}
    for uid, limit in enumerate(asked.values()):
        driver.submit(uid, ids, limit, ignore_eos=False)
    driver.run()
    reasons = [driver.ended[uid].finish_reason for uid in range(3)]
    assert reasons == ["stop", "length", "stop"]
    lengths = [len(driver.answers[uid]) for uid in range(3)]
    assert lengths == [length, length - 1, length]
    driver.assert_parity()
    driver.assert_clean()


def test_c11_ignore_eos_goes_on():
    ids, ends, length = natural("qwen3-tiny")
    driver = Driver(TINY, ends=ends)
    driver.submit(0, ids, length + 5)
    driver.run()
    assert driver.ended[0].finish_reason == "length"
    driver.assert_parity(0, length=length + 5)


@pytest.mark.parametrize("max_tokens", [0, -1])
def test_c11_no_token_is_no_wish(max_tokens):
    with pytest.raises(
        ValueError, match=rf"max_tokens.*at least 1.*{max_tokens}"
    ):
        SamplingParams(max_tokens=max_tokens)


def test_a_token_is_sent_in_the_step_that_made_it_and_the_last_says_so():
    driver = Driver(TINY)
    driver.submit(0, FIXED[2], 3)
    sent = [driver.step() for _ in range(3)]
    assert [len(messages) for messages in sent] == [1, 1, 1]
    flat = [messages[0] for messages in sent]
    assert [msg.finished for msg in flat] == [False, False, True]
    assert [msg.finish_reason for msg in flat] == [None, None, "length"]
    assert driver.idle


def test_the_cache_manager_hears_of_a_prompt_and_of_the_end(monkeypatch):
    driver = Driver(TINY)
    heard, manager = [], driver.scheduler.cache_manager
    cache = manager.cache_req

    def spy(req, *, finished):
        heard.append((req.uid, finished))
        cache(req, finished=finished)

    monkeypatch.setattr(manager, "cache_req", spy)
    for uid, limit in enumerate([1, 3]):
        driver.submit(uid, FIXED[2 + uid], limit)
    driver.run()
    assert sorted(heard) == [(0, True), (1, False), (1, True)]


def test_logits_that_are_not_numbers_end_their_request(monkeypatch):
    driver = Driver(TINY)
    for uid in range(3):
        driver.submit(uid, FIXED[uid], 9)
    poison(driver, 1, at_length=len(FIXED[1]) + 4)
    dropped, manager = [], driver.scheduler.cache_manager
    drop = manager.drop_req
    spy = lambda req: (dropped.append(req.uid), drop(req))  # noqa: E731
    monkeypatch.setattr(manager, "drop_req", spy)
    driver.run()
    assert dropped == [1], "what it computed is not to be kept for anybody"
    assert driver.ended[1].finish_reason == "error"
    assert "not finite" in driver.ended[1].error
    assert len(driver.answers[1]) == 4
    driver.assert_parity()
    driver.assert_clean()


# --- Abort and exit ---


@pytest.mark.parity
@pytest.mark.parametrize("after", [0, 1, 2, 5], ids=lambda n: f"after{n}")
def test_an_abort_is_silent_and_gives_the_row_back(after):
    driver = Driver(TINY, max_running_req=2)
    for uid in range(3):
        driver.submit(uid, FIXED[2 + uid], 6)
    for _ in range(after):
        driver.step()
    count = len(driver.answers[0])
    driver.abort(0)
    driver.step()
    assert driver.idle is False
    driver.run()
    assert 0 not in driver.ended or after > 5
    assert len(driver.answers[0]) == count
    driver.assert_parity(1, 2, length=6)
    driver.assert_clean()


def test_an_abort_in_the_queue_leaves_the_others_there():
    driver = Driver(TINY, max_running_req=1)
    for uid in range(4):
        driver.submit(uid, FIXED[2], 3)
    driver.step()
    driver.abort(2)
    driver.run()
    assert [len(driver.answers[uid]) for uid in range(4)] == [3, 3, 0, 3]
    driver.assert_clean()


def test_an_abort_of_a_request_that_is_not_here_does_nothing():
    driver = Driver(TINY)
    driver.submit(0, FIXED[2], 3)
    driver.abort(999)
    driver.run()
    for uid in (0, 0, 999):
        driver.abort(uid)
    driver.submit(1, FIXED[3], 3)
    driver.run()
    driver.assert_parity(length=3)
    driver.assert_clean()


def test_only_an_idle_scheduler_may_wait_for_messages(monkeypatch):
    driver = Driver(TINY)
    waits, receive = [], driver.scheduler.receive_msg

    def spy(blocking=False):
        waits.append(blocking)
        return receive(blocking)

    monkeypatch.setattr(driver.scheduler, "receive_msg", spy)
    driver.scheduler.receive_msg()
    driver.submit(0, FIXED[2], 2)
    driver.run()
    driver.step()
    assert waits == [False, True, False, True]


def test_run_forever_runs_until_it_is_told_to_exit():
    driver = Driver(TINY)
    driver.submit(0, FIXED[2], 1)
    driver.scheduler.inbox.append(ExitMsg())
    driver.scheduler.run_forever()
    assert [msg.finished for msg in driver.scheduler.outbox] == [True]
    assert driver.scheduler.stopped


def test_an_unknown_message_stops_nobody():
    driver = Driver(TINY)
    driver.scheduler.inbox.append(BaseBackendMsg())
    driver.submit(0, FIXED[2], 3)
    driver.run()
    driver.assert_parity(0, length=3)


@pytest.mark.parametrize("running", [False, True], ids=["queued", "running"])
def test_a_second_request_of_a_number_that_is_here_is_ignored(running):
    driver = Driver(TINY, max_running_req=1)
    driver.submit(0, FIXED[2], 3)
    driver.submit(1, FIXED[3], 5)
    driver.step()
    uid = 0 if running else 1
    other = torch.tensor(FIXED[4], dtype=torch.int32)
    driver.scheduler.inbox.append(
        UserMsg(uid, other, SamplingParams(max_tokens=9))
    )
    driver.run()
    assert [len(driver.answers[uid]) for uid in (0, 1)] == [3, 5]
    driver.assert_parity()
    driver.assert_clean()
    driver.ended.clear()
    driver.submit(0, FIXED[4], 2)  # it has ended, so its number is free
    driver.run()
    driver.assert_parity(0, length=2)


# --- The tensors of a step ---


def test_where_tokens_come_from_and_go():
    reqs = [
        make_req(range(5), 2, 9),
        make_req(range(3), 0, 1),
        make_req([4], 1, 2),
    ]
    reqs[0].cached_len = 3
    page_table = torch.arange(30, dtype=torch.int32).view(3, 10)
    batch = Batch(reqs, "prefill")
    (rows, columns), written = make_inputs(batch, page_table)
    assert rows.tolist() == [2, 2, 0, 0, 0, 1]
    assert columns.tolist() == [3, 4, 0, 1, 2, 0]
    assert batch.positions.tolist() == columns.tolist()
    assert batch.out_loc.tolist() == [23, 24, 0, 1, 2, 10]
    assert [part.tolist() for part in written] == [[2, 0, 1], [5, 3, 1]]
    for req in reqs:
        req.complete_one()
    (rows, columns), written = make_inputs(
        Batch(reqs[:2], "decode"), page_table
    )
    assert (rows.tolist(), columns.tolist()) == ([2, 0], [5, 3])
    # The second one has no token to come: it goes to the column of nobody.
    assert [part.tolist() for part in written] == [[2, 0], [6, -1]]


# --- Settings, and a machine without a GPU ---


def test_a_budget_is_at_least_one():
    with pytest.raises(
        ValueError, match="max_extend_tokens must be at least 1"
    ):
        SchedulerConfig(
            str(TINY), DistributedInfo(0, 1), "auto", max_extend_tokens=0
        )
    config = SchedulerConfig(str(TINY), DistributedInfo(0, 1), "auto")
    assert config.max_extend_tokens == 8192
    with pytest.raises(ValueError, match="page_size"):
        SchedulerConfig(str(TINY), DistributedInfo(0, 1), "auto", page_size=0)


@pytest.mark.parametrize("device", ["cpu", "auto"])
def test_c32_an_attention_backend_that_is_not_here_is_one_line(device):
    settings = {"attention_backend": "flash", "device": device}
    with pytest.raises(
        ValueError, match="'flash' is not supported; use one of"
    ) as e:
        Scheduler(
            SchedulerConfig(
                str(TINY), DistributedInfo(0, 1), "auto", **settings
            )
        )
    assert "\n" not in str(e.value)


BARE = """
import importlib, pkgutil, sys
for name in ("flashinfer", "flash_attn", "triton", "sgl_kernel"):
    sys.modules[name] = None  # importing it now raises ImportError
import torch
before = torch.get_num_threads()
import minisgl
for module in pkgutil.walk_packages(minisgl.__path__, "minisgl."):
    if ".triton." not in module.name:  # kernels written in it
        importlib.import_module(module.name)
from tests.driver import Driver
driver = Driver({folder!r}, device="auto")
driver.submit(0, {ids!r}, 4)
print(driver.run()[0], driver.scheduler.engine.device, before, torch.get_num_threads())
"""


def test_c32_without_gpu_libraries_all_is_imported_and_runs(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    code = BARE.format(folder=str(TINY), ids=FIXED[2])
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    expected = solo(TINY, FIXED[2], 4)
    assert done.stdout.split("]")[0] == str(expected.ids)[:-1]
    assert done.stdout.split("]")[1].split() == ["cpu", "1", "1"]
