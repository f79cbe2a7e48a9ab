"""Messages no honest client sends, and moments few tests hit."""

import torch

from minisgl.core import SamplingParams
from minisgl.llm import LLM
from minisgl.message import UserMsg
from tests.driver import REFUSED, Driver, poison
from tests.parity import assert_parity, model_under_test, prompts, reference

FOLDER = model_under_test("qwen3-tiny")
FIRST, SECOND = (p for p in prompts("qwen3-tiny") if len(p) in (16, 33))


def test_a_number_may_come_again_while_its_first_request_is_ending():
    end = reference(FOLDER, FIRST, 64).ids[3]
    driver = Driver(FOLDER, ends=[end], overlap=True)
    driver.submit(1, FIRST, max_tokens=20, ignore_eos=False)
    while 1 not in driver.ended:
        driver.step()
    assert driver.data is not None, "the batch after the end is in flight"
    driver.ended.clear()
    driver.submit(1, SECOND, max_tokens=8)
    driver.run()
    driver.assert_parity(1, length=8)
    driver.assert_every_page()


def test_a_second_request_of_a_living_number_is_ignored():
    driver = Driver(FOLDER, overlap=True)
    driver.submit(1, FIRST, max_tokens=8)
    driver.step()
    twice = torch.tensor(SECOND, dtype=torch.int32)
    params = SamplingParams(max_tokens=8)
    driver.scheduler.inbox.append(UserMsg(1, twice, params))
    driver.run()
    driver.assert_parity(1, length=8)
    driver.assert_every_page()


def test_an_abort_does_not_leave_a_failed_prompt_in_the_cache():
    driver = Driver(FOLDER, overlap=True)
    poison(driver, 1)
    driver.submit(1, FIRST, max_tokens=8)
    driver.step()
    driver.abort(1)
    driver.run()
    assert driver.scheduler.cache_manager.prefix_cache.size_info.total_size == 0
    driver.assert_every_page()


def test_a_token_outside_the_vocabulary_is_refused_and_the_loop_goes_on():
    driver = Driver(FOLDER)
    size = driver.scheduler.engine.sampler.vocab_size
    for uid, odd in ((1, size), (2, -1), (3, 10**6)):
        driver.submit(uid, [5, odd, 7])
    driver.scheduler.inbox.append("no message at all")
    driver.submit(4, FIRST, max_tokens=8)
    driver.run()
    for uid in (1, 2, 3):
        assert driver.ended[uid].finish_reason in REFUSED
        assert f"vocabulary of {size}" in (driver.ended[uid].error or "")
    driver.assert_parity(4, length=8)


def test_one_bad_prompt_does_not_take_the_others_with_it():
    llm = LLM(str(FOLDER), "float32", device="cpu", num_page_override=512)
    params = SamplingParams(max_tokens=8, ignore_eos=True)
    bad, good = llm.generate(["a\ud800b", FIRST], params)
    assert bad["finish_reason"] in REFUSED
    assert_parity(good["token_ids"], reference(FOLDER, FIRST, 8))


def test_engines_of_two_page_sizes_reset_in_one_process():
    settings = {"device": "cpu", "num_page_override": 512}
    first = LLM(str(FOLDER), "float32", page_size=16, **settings)
    second = LLM(str(FOLDER), "float32", page_size=1, **settings)
    params = SamplingParams(max_tokens=8, ignore_eos=True)
    for llm in (first, second, first):
        llm._reset()
        for _ in range(2):
            (answer,) = llm.generate([SECOND], params)
            assert_parity(answer["token_ids"], reference(FOLDER, SECOND, 8))
        llm.cache_manager.check_integrity()
