"""Several ranks, one answer: parity, the same tokens everywhere, equal memory."""

from dataclasses import replace

import pytest
import torch

from tests.parity import assert_parity, prompts, reference
from tests.prompts import random_prompt
from tests.tp import Job, run_ranks
from tools.models import model_path
from tools.zoo.recipes import RECIPES
from tools.zoo.tiny import write_tiny

LENGTH = 24
DRAWN = {"temperature": 1.0, "max_tokens": 30}
WAYS = [DRAWN, DRAWN | {"top_p": 0.9}, DRAWN | {"seed": 7}]
WAYS.append(WAYS[1] | {"seed": 8})


def greedy(ids):
    return ids, {"max_tokens": LENGTH}


def make_jobs(some):
    """Alone, four at once, and drawn ones beside a late and an aborted one."""
    drawn = [(some[i], WAYS[i]) for i in range(4)]
    return [
        Job([greedy(some[0])]),
        Job([greedy(ids) for ids in some[:4]]),
        Job(drawn),
        Job(
            [*drawn, (some[0], {"max_tokens": 400})],
            at=[0, 1, 2, 3, 0],
            abort_at={4: 9},
        ),
    ]


@pytest.fixture(scope="module")
def thirds(tmp_path_factory):
    """A model of 6 query heads, 3 kv heads, 514 rows: 3 divides the heads only."""
    folder = tmp_path_factory.mktemp("models") / "thirds"
    recipe = RECIPES["qwen3-tiny"]
    sizes = {
        "num_attention_heads": 6,
        "num_key_value_heads": 3,
        "intermediate_size": 252,
        "vocab_size": 514,
    }
    write_tiny(replace(recipe, config=recipe.config | sizes), folder)
    return folder


@pytest.fixture(scope="module")
def lonely(tmp_path_factory):
    """A model with one kv head, with a head of its own and without."""
    folder = tmp_path_factory.mktemp("models") / "lonely"
    recipe = RECIPES["llama3-tiny"]
    write_tiny(
        replace(recipe, config=recipe.config | {"num_key_value_heads": 1}),
        folder,
    )
    return folder


RUNS = {
    "qwen3 over 2": ("qwen3-tiny", 2, {}),
    "qwen3 over 4": ("qwen3-tiny", 4, {"page_size": 16}),
    "6 heads over 3": ("thirds", 3, {}),
    "1 kv head over 2": ("lonely", 2, {"overlap": False}),
}


@pytest.fixture(scope="module", params=RUNS)
def ran(request, tmp_path_factory):
    """(folder, jobs, what each rank noted)."""
    name, size, settings = RUNS[request.param]
    own = name in ("thirds", "lonely")
    folder = request.getfixturevalue(name) if own else model_path(name)
    made = [random_prompt(seed, 5 + 9 * seed) for seed in range(4)]
    some = made if own else prompts(folder)[:4]
    jobs = make_jobs(some)
    out = tmp_path_factory.mktemp("out")
    return folder, jobs, run_ranks(folder, size, jobs, out, **settings)


@pytest.mark.parity
def test_c28_c15_the_answers_are_those_of_one_rank(ran):
    folder, jobs, ranks = ran
    for number in (0, 1):
        for noted in ranks:
            answers = noted["jobs"][number]["answers"]
            for (ids, _), got in zip(
                jobs[number].requests, answers, strict=True
            ):
                assert_parity(got, reference(folder, ids, LENGTH))


def test_c29_all_ranks_sample_the_same_tokens(ran):
    _, _, ranks = ran
    for number in (2, 3):
        steps = [noted["jobs"][number]["sampled"] for noted in ranks]
        assert len(steps[0]) >= 30
        for other in steps[1:]:
            assert other == steps[0]
    first, again = (ranks[0]["jobs"][n]["answers"][:4] for n in (2, 3))
    assert all(len(answer) == 30 for answer in first)
    # Drawn by the server's seed they differ, by their own they do not.
    assert first[:2] != again[:2]
    assert first[2:] == again[2:]


def test_c29_an_abort_comes_in_the_same_step(ran):
    _, _, ranks = ran
    given_up = [noted["jobs"][3]["answers"][4] for noted in ranks]
    assert 0 < len(given_up[0]) < 100
    assert all(answer == given_up[0] for answer in given_up)


def test_c28_rows_that_stand_for_no_token_are_never_sampled(ran):
    folder, _, ranks = ran
    if folder.name != "thirds":
        pytest.skip("every row is a token")
    for noted in ranks:
        ids = [
            token
            for job in noted["jobs"]
            for step in job["sampled"]
            for token in step
        ]
        assert min(ids) >= 0 and max(ids) < 514


def test_a_rank_holds_its_share(ran):
    _, _, ranks = ran
    assert len({noted["weights"] for noted in ranks}) == 1
    # One kv head each: there are as many ranks as kv heads, or more.
    assert all(noted["kv"][2] == 1 for noted in ranks)


def test_the_head_gives_no_logit_to_rows_without_a_token(monkeypatch):
    from minisgl.distributed import set_tp_info
    from minisgl.distributed.info import clear_tp_info
    from minisgl.layers import ParallelLMHead
    from tests.handmade import one_token_each

    clear_tp_info()
    set_tp_info(0, 3)
    try:
        head = ParallelLMHead(4, 2)
        # All real logits are negative: a zero row would win.
        head.weight = -torch.ones(2, 2)
        monkeypatch.setattr(
            head._comm,
            "all_gather",
            lambda x: torch.cat([x, 2 * x, torch.zeros_like(x)]),
        )
        with one_token_each(2):
            logits = head.forward(torch.ones(2, 2))
        assert logits.tolist() == [[-2.0, -2.0, -4.0, -4.0]] * 2
    finally:
        clear_tp_info()


def test_the_rank_with_least_memory_decides(tmp_path):
    """Each rank claims other memory; all have the pages of the poorest."""
    folder = model_path("qwen3-tiny")
    jobs = [Job([greedy(prompts(folder)[0])])]
    ranks = run_ranks(
        folder, 2, jobs, tmp_path, num_page_override=None, memory_ratio=1.0
    )
    free = [noted["free"] for noted in ranks]
    assert free[0] != free[1]
    per_page = 2 * 3 * 64 * 4
    assert ranks[0]["pages"] == ranks[1]["pages"]
    assert abs(ranks[0]["pages"] * per_page - min(free)) < 8 << 20
