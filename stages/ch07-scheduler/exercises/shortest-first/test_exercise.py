"""Shortest first: who goes when, how long a long one waits, and the same answers."""

import pytest

from minisgl.scheduler.shortest import ShortestFirst
from tests.driver import Driver
from tests.parity import model_under_test, prompts

FOLDER = model_under_test("qwen3-tiny")
BY_LENGTH = {len(prompt): prompt for prompt in prompts(FOLDER)}


def start(patience=4, budget=8192, **settings):
    driver = Driver(FOLDER, max_extend_tokens=budget, **settings)
    scheduler = driver.scheduler
    scheduler.prefill_manager = ShortestFirst(
        scheduler.cache_manager,
        scheduler.table_manager,
        scheduler.decode_manager,
        patience=patience,
    )
    return driver


def submit(driver, *lengths, first=0, max_tokens=2):
    for uid, length in enumerate(lengths, first):
        driver.submit(uid, BY_LENGTH[length], max_tokens)


def order(driver):
    """Uids in the order in which their prompts were computed."""
    return [uid for step in driver.prefills() for uid in step.tokens]


def waiting(driver):
    return [r.uid for r in driver.scheduler.prefill_manager.pending_list]


def test_short_prompts_go_first():
    driver = start(budget=1)  # one prompt a step
    submit(driver, 50, 16, 33, 3)
    driver.run()
    assert order(driver) == [3, 1, 2, 0]


def test_equal_prompts_keep_their_order():
    driver = start(budget=1)
    submit(driver, 16, 3, 16, 3, 16)
    driver.run()
    assert order(driver) == [1, 3, 0, 2, 4]


def test_the_budget_is_still_filled():
    driver = start(budget=25)
    submit(driver, 64, 16, 7, 1, 17)
    driver.run()
    assert [sorted(s.tokens) for s in driver.prefills()] == [
        [1, 2, 3],
        [4],
        [0],
    ]


@pytest.mark.parametrize("patience", [0, 1, 3])
def test_a_long_prompt_is_passed_so_often_and_no_more(patience):
    driver = start(patience, budget=1)
    submit(driver, 100)
    for uid in range(1, 8):
        submit(driver, 3, first=uid)
        driver.scheduler.normal_loop()
    driver.run()
    assert order(driver).index(0) == patience


def test_without_patience_the_first_come_is_the_first_served():
    driver = start(patience=0, budget=1)
    submit(driver, 50, 16, 33, 3)
    driver.run()
    assert order(driver) == [0, 1, 2, 3]


def test_those_without_patience_go_in_the_order_of_arrival():
    driver = start(patience=1, budget=1)
    submit(driver, 100, 50, 3, 7)
    driver.run()
    assert order(driver) == [2, 0, 1, 3]


def test_to_wait_behind_earlier_ones_is_not_to_be_passed():
    driver = start(patience=2, budget=1)
    submit(driver, 3, 3, 3, 3, 50, 7)
    driver.run()
    assert order(driver) == [0, 1, 2, 3, 5, 4]
    again = start(patience=1, budget=1)
    submit(again, 3, 3, 3, 50, 7, 7)
    again.run()
    assert order(again) == [0, 1, 2, 4, 3, 5]


def test_several_that_pass_in_one_batch_count_once():
    driver = start(patience=2, budget=8)
    submit(driver, 100, 3, 3)
    driver.step()  # both pass together
    submit(driver, 7, 7, first=3)
    driver.run()
    assert order(driver) == [1, 2, 3, 0, 4]


def test_a_step_that_takes_nobody_costs_no_patience():
    driver = start(patience=1, max_running_req=1)
    submit(driver, 3, max_tokens=12)
    driver.step()
    submit(driver, 50, 7, first=1)
    for _ in range(6):
        driver.step()
    assert waiting(driver) == [1, 2]
    driver.run()
    assert order(driver) == [0, 2, 1]


def test_a_number_that_comes_again_has_its_patience_back():
    driver = start(patience=1, budget=1)
    submit(driver, 100, 3)
    driver.step()  # 1 has passed 0
    driver.abort(0)
    driver.step()
    submit(driver, 100, first=0)
    submit(driver, 3, first=5)
    driver.run()
    assert order(driver) == [1, 5, 0]


def test_a_request_that_was_taken_leaves_nothing_behind():
    driver = start(budget=1)
    submit(driver, 100, 3, 50, 7)
    driver.run()
    assert driver.scheduler.prefill_manager._passed == {}


def test_first_tokens_come_sooner_on_average():
    def total(patience):
        driver = start(patience, budget=1)
        submit(driver, 100, 77, 64, 50, 33, 17, 16, 7, 3, 1, max_tokens=1)
        driver.run()
        times = {uid: at for at, uid in enumerate(order(driver), 1)}
        lengths = [100, 77, 64, 50, 33, 17, 16, 7, 3, 1]
        spent = [
            sum(lengths[u] for u in order(driver)[:t]) for t in times.values()
        ]
        return sum(spent)

    assert total(patience=99) < total(patience=0) / 2


@pytest.mark.parity
def test_the_answers_are_the_same():
    driver = start(patience=2, budget=60)
    submit(driver, 100, 3, 50, 7, 33, 16, max_tokens=6)
    driver.run()
    driver.assert_parity(length=6)
    driver.assert_clean()
