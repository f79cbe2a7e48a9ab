"""Prompts in chunks, and decodes between them."""

import random

import pytest
import torch

from minisgl.core import SamplingParams
from minisgl.kvcache.naive_cache import NaivePrefixCache
from minisgl.kvcache.radix_cache import RadixPrefixCache
from minisgl.scheduler.prefill import ChunkedReq, PrefillManager
from tests.driver import Driver, poison
from tests.handmade import make_req
from tests.parity import RandomParity, model_under_test, prompts, random_prompts
from tests.prompts import random_prompt

PAGES = pytest.mark.parametrize("page", [1, 4, 16])
BUDGETS = [1, 7, 49, 50, 51, 1000]
FIFTY, HUNDRED, SHORT = (
    random_prompt(2, 50),
    random_prompt(0, 100),
    random_prompt(3, 7),
)


@pytest.fixture(scope="module")
def folder():
    return model_under_test("qwen3-tiny")


def chunks(driver, uid):
    """How many tokens of a request each prefill step computed."""
    return [s.tokens[uid] for s in driver.prefills() if uid in s.tokens]


def assert_within(driver, budget):
    assert (
        max(sum(step.tokens.values()) for step in driver.prefills()) <= budget
    )


def with_stream(folder, **settings):
    """A driver whose request 0 is decoding, to the end of the test if need be."""
    driver = Driver(folder, **settings)
    driver.submit(0, SHORT, 60)
    driver.step()
    driver.step()
    assert [step.phase for step in driver.steps] == ["prefill", "decode"]
    driver.steps.clear()
    return driver


# -- the budget ----------------------------------------------------------------------


@pytest.mark.parity
@PAGES
@pytest.mark.parametrize("budget", BUDGETS)
def test_c01_a_prompt_longer_than_the_budget_runs(folder, page, budget):
    driver = Driver(folder, page_size=page, max_extend_tokens=budget)
    driver.submit(0, FIFTY, 16)
    driver.run()
    whole, rest = divmod(50, budget)
    assert chunks(driver, 0) == [budget] * whole + [rest] * (rest > 0)
    assert_within(driver, budget)
    assert len([*driver.decodes()]) == 15
    driver.assert_parity(length=16)
    driver.assert_every_page()


@pytest.mark.parity
@PAGES
def test_c01_two_prompts_share_a_budget(folder, page):
    driver = Driver(folder, page_size=page, max_extend_tokens=60)
    for uid in (0, 1):
        driver.submit(uid, random_prompt(uid, 50), 12)
    driver.run()
    assert [s.tokens for s in driver.prefills()] == [{0: 50, 1: 10}, {1: 40}]
    driver.assert_parity(length=12)
    driver.assert_every_page()


@pytest.mark.parity
@PAGES
@pytest.mark.parametrize("budget", [1, 5, 16, 33, 64, 8192])
def test_every_budget_gives_the_same_answers(folder, page, budget):
    driver = Driver(
        folder, page_size=page, max_extend_tokens=budget, max_running_req=4
    )
    for uid, prompt in enumerate(prompts(folder)[3:]):
        driver.submit(uid, prompt, 8)
        driver.step()
    driver.run()
    assert_within(driver, budget)
    driver.assert_parity(length=8)
    driver.assert_every_page()


@pytest.mark.parity
@PAGES
def test_a_hit_is_not_paid_for(folder, page):
    """The budget counts what is computed, and chunks go on after what is known."""
    driver = Driver(folder, page_size=page, max_extend_tokens=20)
    for uid, length in ((0, 64), (1, 100), (2, 100)):
        driver.submit(uid, HUNDRED[:length], 6)
        driver.run()
    assert chunks(driver, 0) == [20, 20, 20, 4]
    assert chunks(driver, 1) == [20, 16]
    assert chunks(driver, 2) == [100 - 99 // page * page]
    driver.assert_parity(1, 2, length=6)
    driver.assert_every_page()


def test_a_chunk_makes_no_token(folder):
    driver = Driver(folder, max_extend_tokens=20)
    driver.submit(0, FIFTY, 4)
    sent = [driver.step() for _ in range(4)]
    assert [len(messages) for messages in sent] == [0, 0, 1, 1]
    assert len(driver.run()[0]) == 4


def test_one_token_after_chunks_needs_no_decode(folder):
    driver = Driver(folder, max_extend_tokens=20)
    driver.submit(0, FIFTY, 1)
    driver.run()
    assert [s.phase for s in driver.steps] == ["prefill"] * 3
    assert driver.ended[0].finish_reason == "length"
    driver.assert_every_page()


def test_a_seeded_draw_does_not_depend_on_the_chunks(folder):
    answers = []
    for budget in (7, 1000):
        driver = Driver(folder, max_extend_tokens=budget)
        driver.submit(0, FIFTY, 12, temperature=1.0, seed=42)
        answers.append(driver.run())
    assert answers[0] == answers[1]


def test_the_rest_of_a_prompt_comes_before_newer_requests(folder):
    driver = Driver(folder, max_extend_tokens=30)
    for uid, length in enumerate((40, 25, 10)):
        driver.submit(uid, random_prompt(uid, length), 1)
    driver.run()
    assert [s.tokens for s in driver.prefills()] == [
        {0: 30},
        {0: 10, 1: 20},
        {1: 5, 2: 10},
    ]


def test_a_chunk_is_no_request_that_decodes():
    req = make_req([1, 2, 3], 0, 8)
    chunk = ChunkedReq(**vars_of(req))
    assert req.can_decode and not chunk.can_decode
    with pytest.raises(TypeError, match="prompt"):
        chunk.append_host(torch.tensor([4], dtype=torch.int32))
    assert len(chunk.input_ids) == 3


def vars_of(req):
    names = ("input_ids", "table_idx", "cached_len", "output_len", "uid")
    more = {"sampling_params": SamplingParams(), "cache_handle": None}
    return {name: getattr(req, name) for name in names} | more


# -- the policy ----------------------------------------------------------------------


@pytest.mark.parity
@PAGES
def test_c02_a_stream_goes_on_between_chunks(folder, page):
    driver = with_stream(
        folder, page_size=page, max_extend_tokens=10, prefills_in_a_row=1
    )
    driver.submit(1, HUNDRED, 8)
    got = []
    while len(chunks(driver, 1)) < 10:
        got.append([message.uid for message in driver.step()])
    # Ten chunks, nine tokens between them; the last chunk makes B's first.
    assert got == [[], [0]] * 9 + [[1]]
    assert chunks(driver, 1) == [10] * 10
    assert [m.uid for m in driver.step()] == [0, 1]
    driver.run()
    driver.assert_parity(0, length=60)
    driver.assert_parity(1, length=8)
    driver.assert_every_page()


@pytest.mark.parity
@PAGES
def test_c02_prefill_first_stops_the_stream_for_ten_steps(folder, page):
    driver = with_stream(
        folder, page_size=page, max_extend_tokens=10, prefills_in_a_row=0
    )
    driver.submit(1, HUNDRED, 8)
    got = [[m.uid for m in driver.step()] for _ in range(12)]
    assert got == [[]] * 9 + [[1], [0, 1], [0, 1]]
    assert chunks(driver, 1) == [10] * 10
    driver.run()
    driver.assert_parity(0, length=60)
    driver.assert_parity(1, length=8)
    driver.assert_every_page()


@pytest.mark.parametrize("limit", [1, 2, 3, 12])
def test_so_many_prefills_in_a_row(folder, limit):
    driver = with_stream(folder, max_extend_tokens=10, prefills_in_a_row=limit)
    driver.submit(1, HUNDRED, 1)
    driver.run()
    steps = "".join(step.phase[0] for step in driver.steps)
    runs = [len(run) for run in steps.split("d") if run]
    whole, rest = divmod(10, limit)
    assert runs == [limit] * whole + [rest] * (rest > 0)
    # A turn taken long ago does not count: the next prompt begins at once.
    assert steps.startswith("p")


def test_short_prompts_take_turns_too(folder):
    driver = with_stream(folder, max_extend_tokens=10)
    for uid in range(1, 4):
        driver.submit(uid, random_prompt(uid, 10), 1)
    driver.run()
    steps = [step.phase for step in driver.steps[:5]]
    assert steps == ["prefill", "decode"] * 2 + ["prefill"]


def test_without_a_stream_nothing_waits(folder):
    driver = Driver(folder, max_extend_tokens=10, prefills_in_a_row=1)
    driver.submit(0, FIFTY, 3)
    driver.run()
    assert [s.phase for s in driver.steps] == ["prefill"] * 5 + ["decode"] * 2


def test_a_turn_nobody_could_use_is_not_owed(folder):
    """Rows are short: B waits, A decodes, and when B comes in it has its turn."""
    driver = Driver(
        folder, max_running_req=1, max_extend_tokens=25, prefills_in_a_row=2
    )
    driver.submit(0, SHORT, 4)
    driver.submit(1, FIFTY, 4)
    driver.run()
    phases = "".join(step.phase[0] for step in driver.steps)
    assert phases == "pddd" + "ppddd"
    driver.assert_clean()


# -- admission -----------------------------------------------------------------------


@pytest.mark.parity
@PAGES
def test_room_for_all_of_a_prompt_is_reserved_with_its_first_chunk(
    folder, page
):
    """B's last chunk leaves budget for C, but not pages: C has to wait."""
    driver = Driver(
        folder, page_size=page, pages=96 // page, max_extend_tokens=30
    )
    driver.submit(1, FIFTY, 30)
    driver.submit(2, SHORT, 20)
    driver.run()
    assert [s.tokens for s in driver.prefills()] == [{1: 30}, {1: 20}, {2: 7}]
    driver.assert_parity(1, length=30)
    driver.assert_parity(2, length=20)
    driver.assert_every_page()


@pytest.mark.parity
def test_what_both_need_and_the_pool_has_is_enough(folder):
    driver = Driver(folder, pages=50 + 30 + 7 + 20, max_extend_tokens=30)
    driver.submit(1, FIFTY, 30)
    driver.submit(2, SHORT, 20)
    driver.run()
    assert [s.tokens for s in driver.prefills()] == [{1: 30}, {1: 20, 2: 7}]
    driver.assert_parity(1, length=30)
    driver.assert_every_page()


@pytest.mark.parity
@pytest.mark.parametrize("seed", range(6))
def test_a_tight_pool_a_small_budget_and_aborts(folder, seed):
    rng, near = random.Random(seed), RandomParity()
    page = rng.choice((1, 4, 16))
    driver = Driver(
        folder,
        page_size=page,
        pages=160 // page,
        max_running_req=3,
        max_extend_tokens=rng.choice((3, 16, 40)),
        prefills_in_a_row=rng.choice((0, 1, 2)),
        cache_type=rng.choice(("naive", "radix")),
    )
    base = random_prompts(90 + seed, 1, 60, 60)[0]
    gone = set()
    for uid, own in enumerate(random_prompts(seed, 10, 1, 30)):
        driver.submit(uid, [*base[: rng.choice((0, 17, 60))], *own], 10)
        for _ in range(rng.randrange(4)):
            driver.step()
        if rng.random() < 0.3:
            gone.add(victim := rng.randrange(uid + 1))
            driver.abort(victim)
    driver.run()
    done = driver.ended.keys()
    assert done | gone == {*range(10)}
    driver.assert_parity(*done, length=10, near=near)
    near.finish()
    driver.assert_every_page()


# -- endings between chunks ------------------------------------------------------------


@pytest.mark.parity
@PAGES
@pytest.mark.parametrize("done", [0, 1, 2, 4])
def test_an_abort_between_chunks_leaves_a_clean_pool(folder, page, done):
    driver = with_stream(folder, page_size=page, max_extend_tokens=12)
    driver.submit(1, FIFTY, 8)
    while len(chunks(driver, 1)) < done:
        driver.step()
    driver.abort(1)
    driver.abort(1)
    driver.submit(2, FIFTY, 8)
    driver.run()
    assert chunks(driver, 1) == [12] * done
    assert driver.answers[1] == [] and 1 not in driver.ended
    # What it had computed is known now, but for the last token.
    known = max(12 * done - 1, 0) // page * page
    assert sum(chunks(driver, 2)) == 50 - known
    driver.assert_parity(0, length=60)
    driver.assert_parity(2, length=8)
    driver.assert_every_page()


@pytest.mark.parity
@pytest.mark.parametrize("page", [1, 4])
@pytest.mark.parametrize("at, done", [(12, 1), (36, 3), (50, 5)])
def test_nan_in_a_chunk_ends_that_request_only(folder, page, at, done):
    driver = with_stream(folder, page_size=page, max_extend_tokens=12)
    poison(driver, uid=1, at_length=at)
    driver.submit(1, FIFTY, 8)
    driver.submit(2, FIFTY, 8)
    driver.run()
    assert len(chunks(driver, 1)) == done
    assert driver.ended[1].finish_reason == "error"
    assert "finite" in driver.ended[1].error
    assert driver.answers[1] == []
    # Nothing of it is reused, not even chunks from before the fault.
    assert sum(chunks(driver, 2)) == 50
    driver.assert_parity(0, length=60)
    driver.assert_parity(2, length=8)
    driver.assert_every_page()


# -- settings --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, kind",
    [
        ("naive", NaivePrefixCache),
        ("radix", RadixPrefixCache),
        ("auto", RadixPrefixCache),
    ],
)
def test_the_cache_is_a_setting(folder, name, kind):
    driver = Driver(folder, cache_type=name)
    assert type(driver.scheduler.cache_manager.prefix_cache) is kind
    for uid in (0, 1):
        driver.submit(uid, FIFTY, 1)
        driver.run()
    assert chunks(driver, 1) == [50 if name == "naive" else 1]


def test_by_default_the_cache_is_on_and_prefills_take_turns(folder):
    driver = Driver(folder)
    config = driver.scheduler.config
    assert (config.cache_type, config.prefills_in_a_row) == ("auto", 1)
    assert driver.scheduler.prefill_manager.prefills_in_a_row == 1
    assert PrefillManager.prefills_in_a_row == 1


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"max_extend_tokens": 0}, "max_extend_tokens must be at least 1"),
        ({"prefills_in_a_row": -1}, "prefills_in_a_row must be at least 0"),
        ({"cache_type": "lru"}, "lru"),
    ],
)
def test_settings_out_of_range_are_refused(folder, settings, message):
    with pytest.raises(ValueError, match=message):
        Driver(folder, **settings)
