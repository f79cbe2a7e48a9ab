"""The same tokens with drafts as without, and every page where it belongs."""

import random

import pytest
import torch

from minisgl.core import SamplingParams
from minisgl.llm import LLM
from minisgl.scheduler.idle import IdleCheck
from tests.driver import Driver, poison, solo
from tests.fakes.install import stand_ins
from tests.parity import (
    RandomParity,
    model_under_test,
    prompts,
    random_prompts,
    reference,
)
from tests.speculating import SpeculativeDriver, noisy
from tests.tp import Job, run_ranks

FOLDER = model_under_test("qwen3-tiny")
PROMPTS = prompts(FOLDER)
# A model of random weights soon repeats itself, so that n-grams find something.
WAYS = {
    "ngram": {},
    "draft": {
        "speculative": "draft",
        "speculative_draft_model": str(FOLDER),
    },
}


def drive(**settings) -> SpeculativeDriver:
    return SpeculativeDriver(FOLDER, **settings)


def asked(driver, some, **params):
    for uid, ids in enumerate(some):
        driver.submit(uid, ids, **params)
    return driver.run()


# The same tokens.


@pytest.mark.parity
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("overlap", [False, True])
def test_greedy_tokens_are_those_of_transformers(way, overlap):
    driver = drive(overlap=overlap, max_extend_tokens=32, **WAYS[way])
    asked(driver, PROMPTS, max_tokens=48)
    driver.assert_parity(length=48)
    driver.assert_every_page()
    assert driver.drafted > 50


LIVES = [
    {"page_size": 1, "cache_type": "radix"},
    {"page_size": 4, "cache_type": "radix", "overlap": True},
    {"page_size": 16, "cache_type": "naive"},
    {"page_size": 4, "cache_type": "radix", "overlap": True, "way": "draft"},
    {
        "page_size": 16,
        "cuda_graph_bs": [4, 16, 64],
        "max_seq_len_override": 160,
    },
]


def test_200_random_prompts_with_aborts_among_those_that_do_not_speculate():
    """Whoever is not aborted has the plain engine's tokens, near ties apart."""
    rng, near = random.Random(27), RandomParity()
    # Some stand twice in themselves, and hit the radix cache.
    some = [
        ids * rng.choice([1, 1, 2]) for ids in random_prompts(27, 200, 2, 40)
    ]
    plain = Driver(FOLDER, pages=16384)
    asked(plain, some, max_tokens=40)
    for number, life in enumerate(LIVES):
        driver = live(life, some[number::5], rng)
        assert driver.drafted > 100
        for uid, got in driver.answers.items():
            whole = plain.answers[5 * uid + number]
            if got != whole[: len(got)]:
                near.check(got, solo(FOLDER, driver.prompts[uid], len(got)))
            near.tokens += len(got)
    near.finish()


def live(life, some, rng):
    """A driver that has answered, whoever was not aborted in full."""
    way = WAYS[life.get("way", "ngram")]
    driver = drive(
        pages=2048 // life["page_size"],
        max_running_req=12,
        max_extend_tokens=rng.choice([16, 64]),
        **{key: value for key, value in life.items() if key != "way"},
        **way,
    )
    aborted, wanted = set(), {}
    for uid, ids in enumerate(some):
        wanted[uid] = rng.randint(1, 40)
        driver.submit(uid, ids, wanted[uid], speculate=rng.random() < 0.8)
        for _ in range(rng.randrange(3)):
            driver.step()
        gone = rng.randrange(uid + 1)
        if rng.random() < 0.15 and gone not in driver.ended:
            driver.abort(gone)
            aborted.add(gone)
    driver.run()
    driver.assert_every_page()
    for uid in wanted.keys() - aborted:
        assert len(driver.answers[uid]) == wanted[uid]
    return driver


@pytest.mark.parametrize("name", ["torch", "fi", "fa", "fa,fi"])
@pytest.mark.parametrize("recorded", [False, True])
def test_every_backend_checks_drafts(name, recorded):
    """Computed as one request each, or replayed with a row for every token."""
    sizes = [1, 2, 4, 8, 16, 32, 48] if recorded else []
    with stand_ins():
        driver = drive(
            page_size=4,
            pages=512,
            attention_backend=name,
            cuda_graph_bs=sizes,
            max_seq_len_override=256,
        )
        runner = driver.scheduler.engine.graph_runner
        replayed, replay = [], runner.replay
        runner.replay = lambda batch: (
            replayed.append(batch.size), replay(batch)
        )[1]  # fmt: skip
        asked(driver, PROMPTS[:5], max_tokens=40)
    driver.assert_parity(length=40)
    driver.assert_every_page()
    assert driver.drafted > 50
    steps = {sum(counts.values()) + len(counts) for counts in driver.checked}
    assert (steps & set(replayed) != set()) == recorded


@pytest.mark.parametrize("way", WAYS)
def test_a_seed_draws_the_same_tokens_with_and_without(way):
    """Also where a draft model has room for some requests only."""
    params = [
        {"temperature": 0.8, "seed": 5},
        {"temperature": 1.0, "seed": 6, "top_k": 4},
        {"temperature": 0.7, "seed": 7, "top_p": 0.8, "min_p": 0.05},
        {"temperature": 0.6, "seed": 8, "repetition_penalty": 1.2},
    ]
    answers = []
    for driver in (Driver(FOLDER), drive(**WAYS[way])):
        if way == "draft" and isinstance(driver, SpeculativeDriver):
            driver.scheduler.drafter.rows._free = [0, 1, 2]
        for uid, ids in enumerate(PROMPTS[:4]):
            driver.submit(uid, ids, 40, **params[uid])
        answers.append(driver.run())
    assert answers[0] == answers[1]
    assert driver.drafted > 20
    assert any(len(counts) == 4 for counts in driver.checked)


EDITS = [
    {"repetition_penalty": 1.3},
    {"frequency_penalty": 0.8, "presence_penalty": 0.5},
    {"logit_bias": {"7": 4.0, "9": -100}},
    {"logprobs": 3},
    {"logprobs": 0, "repetition_penalty": 0.9},
    {},
]


@pytest.mark.parametrize("way", WAYS)
def test_penalties_bias_and_logprobs_are_those_of_single_steps(way):
    found = []
    for driver in (Driver(FOLDER), drive(**WAYS[way])):
        told = {uid: [] for uid in range(len(EDITS))}
        for uid, edits in enumerate(EDITS):
            driver.submit(uid, PROMPTS[uid], 32, **edits)
        while not driver.idle:
            for msg in driver.step():
                told[msg.uid].append(msg.logprobs)
        found.append((driver.answers, told))
    (plain, before), (checked, after) = found
    assert plain == checked and driver.drafted > 40
    for uid in (3, 4):
        for one, other in zip(before[uid], after[uid], strict=True):
            assert one.top_ids == other.top_ids
            assert abs(one.logprob - other.logprob) < 1e-3
    assert after[0] == [None] * 32


@pytest.mark.parametrize("way", WAYS)
def test_answers_of_a_given_form_are_not_guessed_for_and_keep_it(way):
    """What a form allows moves on with every token, so they go one by one."""
    found = []
    for settings in ({"speculative": None}, WAYS[way]):
        driver = drive(overlap=True, **settings)
        driver.submit(0, PROMPTS[0] * 2, 24, regex="(ab|c)+")
        for uid in (1, 2):
            driver.submit(uid, PROMPTS[uid] * 2, 24)
        found.append(driver.run())
        driver.assert_every_page()
    assert found[0] == found[1] and driver.drafted > 10
    assert any(0 in counts for counts in driver.checked)
    assert all(counts.get(0, 0) == 0 for counts in driver.checked)


# How a request ends.


def test_never_a_token_too_many():
    """Drafts of another model's, all right, up to the very last token."""
    for most in range(1, 14):
        driver = drive(
            page_size=4, pages=64, speculative_tokens=5, **WAYS["draft"]
        )
        asked(driver, PROMPTS[:2], max_tokens=most)
        driver.assert_parity(length=most)
        reasons = {msg.finish_reason for msg in driver.ended.values()}
        assert reasons == {"length"}
        driver.assert_every_page()


def test_a_context_that_ends_inside_a_draft():
    ids = PROMPTS[0]
    room = len(ids) + 9
    driver = drive(
        max_seq_len_override=room, speculative_tokens=6, **WAYS["draft"]
    )
    asked(driver, [ids], max_tokens=1000)
    driver.assert_parity(length=9)
    driver.assert_every_page()


@pytest.mark.parametrize("at", range(1, 12))
def test_an_end_inside_an_accepted_run_ends_there(at):
    ids = PROMPTS[2]
    whole = reference(FOLDER, ids, 64).ids
    end = whole[at]
    length = whole.index(end) + 1
    for by in ("eos", "stop"):
        driver = drive(
            page_size=4,
            pages=64,
            ends=[end] if by == "eos" else [],
            speculative_tokens=6,
            **WAYS["draft"],
        )
        stops = {"stop_token_ids": [end]} if by == "stop" else {}
        driver.submit(0, ids, 40, ignore_eos=by != "eos", **stops)
        driver.run()
        assert driver.answers[0] == whole[:length]
        assert driver.ended[0].finish_reason == "stop"
        driver.assert_every_page()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("overlap", [False, True])
def test_logits_that_are_not_numbers_end_their_request_only(way, overlap):
    for after in range(1, 9):
        driver = drive(overlap=overlap, page_size=4, pages=256, **WAYS[way])
        poison(driver, 1, len(PROMPTS[1]) + after)
        asked(driver, PROMPTS[:3], max_tokens=24)
        assert driver.ended[1].finish_reason == "error"
        assert len(driver.answers[1]) == after, "up to there all is well"
        driver.assert_parity(0, 2, length=24)
        driver.assert_parity(1)
        driver.assert_every_page()


def test_drawn_drafts_with_broken_logits_fail_too(tmp_path):
    """Rows whose drafts are judged by distributions keep what is no number."""
    driver = drive(**WAYS["draft"])
    poison(driver, 0, len(PROMPTS[0]) + 5)
    for uid in (0, 1):
        driver.submit(uid, PROMPTS[uid], 24, temperature=1.0)
    driver.run()
    assert driver.ended[0].finish_reason == "error"
    assert len(driver.answers[0]) == 5 and len(driver.answers[1]) == 24
    driver.assert_every_page()


@pytest.mark.parametrize("way", WAYS)
def test_aborts_at_any_step_leave_nothing_behind(way):
    for when in range(1, 12):
        driver = drive(
            overlap=True, page_size=4, pages=256, max_extend_tokens=16,
            **WAYS[way],
        )  # fmt: skip
        for uid in range(3):
            driver.submit(uid, PROMPTS[uid], 30)
        for _ in range(when):
            driver.step()
        driver.abort(1)
        driver.run()
        driver.assert_parity(0, 2, length=30)
        driver.assert_every_page()
        if way == "draft":
            drafter = driver.scheduler.drafter
            assert not drafter._followers
            pages = drafter.pages
            assert sorted(pages.free_pages.tolist()) == [
                *range(pages.num_pages)
            ]


# What is guessed, and when.


def note_draft_tokens(driver) -> list[int]:
    """Tokens that the draft model computes in each of its steps."""
    drafter, taken = driver.scheduler.drafter, []
    run = drafter._run

    def noted(live):
        taken.append(sum(f.req.extend_len for f in live))
        return run(live)

    drafter._run = noted
    return taken


def test_right_drafts_save_steps():
    """With the model itself as its draft model, every draft is right."""
    driver = drive(speculative_tokens=4, **WAYS["draft"])
    taken = note_draft_tokens(driver)
    asked(driver, [PROMPTS[3]], max_tokens=41)
    steps = [step for step in driver.steps if step.phase == "prefill"]
    # The prompt makes one token, each further step five.
    assert len(steps) == 1 + 8 and len(driver.steps) == 9
    told = driver.ended[0]
    assert (told.accepted_tokens, told.rejected_tokens) == (4, 0)
    # Of five new tokens the draft model has computed all but the last two.
    assert taken[1:4] == [1, 1, 1] and taken[4:8] == [2, 1, 1, 1] == taken[-4:]


def test_as_many_are_guessed_for_as_can_run():
    driver = drive(max_running_req=2, **WAYS["draft"])
    asked(driver, PROMPTS[2:4], max_tokens=12)
    driver.assert_parity(length=12)
    assert driver.checked and all(
        len(counts) == 2 and 0 not in counts.values()
        for counts in driver.checked[:2]
    )


def test_a_draft_model_goes_on_from_what_was_right(tmp_path):
    """One that is often wrong: what it keeps in its cache has to be the text."""
    folder = noisy(FOLDER, tmp_path / "noisy", 0.2)
    for page_size in (1, 4):
        driver = drive(
            page_size=page_size,
            pages=512,
            speculative="draft",
            speculative_draft_model=str(folder),
        )
        drafter = driver.scheduler.drafter
        alone = Driver(folder, pages=2048)
        guesses = []
        propose = drafter.propose

        def noted(reqs, limits, propose=propose, guesses=guesses):
            drafts = propose(reqs, limits)
            texts = [req.input_ids.tolist() for req in reqs]
            guesses.extend(zip(texts, drafts, strict=True))
            return drafts

        drafter.propose = noted
        asked(driver, PROMPTS[:3], max_tokens=24)
        driver.assert_parity(length=24)
        driver.assert_every_page()
        for uid, (text, draft) in enumerate(guesses):
            alone.submit(uid, text, max(1, len(draft.tokens)))
        alone.run()
        for uid, (_, draft) in enumerate(guesses):
            count = len(draft.tokens)
            assert alone.answers[uid][:count] == draft.tokens
        right = sum(m.accepted_tokens or 0 for m in driver.ended.values())
        assert driver.drafted > 40 and right < driver.drafted


def test_who_does_not_want_to_speculate_keeps_overlap_and_has_no_drafts():
    driver = drive(overlap=True)
    driver.submit(0, PROMPTS[0] * 2, 20, speculate=False)
    driver.step()
    driver.step()
    assert driver.data is not None and not driver.checked
    waiting = driver.data
    driver.submit(1, PROMPTS[1] * 2, 20)
    driver.step()
    assert driver.data is not waiting
    driver.run()
    assert driver.drafted and all(c.get(0, 0) == 0 for c in driver.checked)
    driver.assert_parity(length=20)


def test_a_long_prompt_reaches_the_draft_model_in_chunks():
    """Before it has all of a text it does not guess how that goes on."""
    driver = drive(max_extend_tokens=8, speculative_tokens=3, **WAYS["draft"])
    taken, sent = note_draft_tokens(driver), []
    for uid, ids in enumerate(PROMPTS[4:7]):
        driver.submit(uid, ids, max_tokens=30)
    while not driver.idle:
        sent += driver.step()
    driver.assert_parity(length=30)
    assert max(taken) == 8 and driver.drafted > 20
    assert not any(told.rejected_tokens for told in sent)


def test_the_books_of_a_draft_model_are_checked_when_idle(caplog):
    driver = drive(**WAYS["draft"])
    asked(driver, PROMPTS[:2], max_tokens=8)
    driver.run()
    scheduler = driver.scheduler
    scheduler.run_when_idle()
    assert not caplog.records
    pages = scheduler.drafter.pages
    pages.free_pages = pages.free_pages[1:]
    scheduler.idle_check = IdleCheck()  # which has not just looked
    scheduler.run_when_idle()
    assert "pages do not add up" in caplog.text


def test_a_draft_model_with_a_small_pool_guesses_for_some():
    driver = drive(page_size=4, pages=256, **WAYS["draft"])
    drafter = driver.scheduler.drafter
    drafter.pages.num_pages = 32
    asked(driver, [ids[:20] for ids in PROMPTS[2:7]], max_tokens=30)
    driver.assert_parity(length=30)
    assert driver.drafted > 20
    assert any(0 in counts.values() for counts in driver.checked)


# Drawn tokens.


def pairs_of(llm, prompt, way, count):
    """How often each (second, third) token came; the first is always the same."""
    params = SamplingParams(max_tokens=4, ignore_eos=True, **way)
    found = llm.generate([prompt] * count, params, progress=False)
    counts: dict[tuple[int, ...], int] = {}
    for answer in found:
        key = tuple(answer["token_ids"][:3])
        counts[key] = counts.get(key, 0) + 1
    return counts


def exactly(llm, prompt, way, size=3):
    """The probability of each three tokens, from the bare model's logprobs."""

    def following(some):
        params = SamplingParams(max_tokens=1, ignore_eos=True, logprobs=20)
        for answer in llm.generate(some, params, progress=False):
            [told] = answer["logprobs"]
            ids, logprobs = told.top_ids[:size], told.top_logprobs[:size]
            scores = torch.tensor(logprobs) / way["temperature"]
            yield dict(zip(ids, torch.softmax(scores, 0).tolist(), strict=True))

    known: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(3):
        texts = [prompt + list(made) for made in known]
        further = zip(known.items(), following(texts), strict=True)
        known = {
            (*made, token): p * q
            for (made, p), nexts in further
            for token, q in nexts.items()
        }
    return known


@pytest.mark.parametrize("way", ["ngram", "draft"])
def test_drawn_tokens_have_the_models_distribution(tmp_path, way):
    """Of 27 outcomes of three tokens, against their exact probabilities."""
    settings = {"device": "cpu", "num_page_override": 4096}
    wanted = {"temperature": 0.8, "top_k": 3}
    prompt = PROMPTS[2] * 2
    exact = exactly(LLM(str(FOLDER), "float32", **settings), prompt, wanted)
    if way == "draft":
        folder = noisy(FOLDER, tmp_path / "noisy", 0.3)
        settings["speculative_draft_model"] = str(folder)
    else:
        # Whatever was there before is a guess, mostly a wrong one.
        settings["speculative_ngram_min"] = 1
    llm = LLM(str(FOLDER), "float32", speculative=way, **settings)
    n = 2000
    found = pairs_of(llm, prompt, wanted, n)
    assert set(found) <= set(exact)
    # Outcomes that hardly ever come count as one: a single one of them, which
    # may well be, would be far from what is expected of it.
    often = {key: p for key, p in exact.items() if n * p >= 5}
    seldom = 1 - sum(often.values())
    other = n - sum(found.get(key, 0) for key in often)
    misfit = (other - n * seldom) ** 2 / max(n * seldom, 5)
    for key, p in often.items():
        misfit += (found.get(key, 0) - n * p) ** 2 / (n * p)
    # Of 13 degrees of freedom; one right engine in ten million is above.
    assert len(often) > 8 and misfit < 60, misfit


# Ranks.


@pytest.mark.parity
def test_ranks_guess_and_choose_the_same(tmp_path):
    """Random ones as well, without a seed."""
    drawn = {"temperature": 1.0, "max_tokens": 20}
    requests = [(ids * 2, {"max_tokens": 24}) for ids in PROMPTS[:3]]
    requests += [(ids * 2, drawn) for ids in PROMPTS[:2]]
    settings = {"speculative": "ngram", "speculative_ngram_min": 1}
    jobs = [Job(requests[:3]), Job(requests)]
    kind = "minisgl.scheduler.speculative:SpeculativeScheduler"
    one, other = run_ranks(FOLDER, 2, jobs, tmp_path, kind, **settings)
    assert one["jobs"] == other["jobs"]
    for uid in range(3):
        expected = reference(FOLDER, requests[uid][0], 64)
        for job in one["jobs"]:
            assert job["answers"][uid] == expected.ids[:24]
    rows = [len(tokens) for tokens in one["jobs"][0]["sampled"]]
    assert max(rows) > 3, "some drafts were checked"
