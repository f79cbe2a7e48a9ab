"""Blocks of prompts, who knows which, who is chosen, and what a simulation says."""

import json
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minisgl.deploy.blocks import BLOCK, MOST_BLOCKS, prompt_blocks
from minisgl.deploy.policy import (
    POLICIES,
    LeastLoadedPolicy,
    PrefixPolicy,
    RandomPolicy,
)
from minisgl.deploy.prefixes import PrefixIndex, PrefixLRU
from minisgl.deploy.settings import DeployArgs
from minisgl.deploy.simulate import Machine, simulate
from minisgl.deploy.traffic import Traffic
from minisgl.distributed import DistributedInfo
from minisgl.server.args import ServerArgs


def body(**fields) -> bytes:
    return json.dumps(fields).encode()


def chat(*texts: str) -> list[int]:
    roles = ["user", "assistant"] * len(texts)
    turns = [
        {"role": role, "content": text}
        for role, text in zip(roles, texts, strict=False)
    ]
    return prompt_blocks(body(messages=turns, model="m"))


def common(one: list[int], other: list[int]) -> int:
    """From the first on."""
    pairs = zip(one, other, strict=False)
    return next(
        (i for i, (a, b) in enumerate(pairs) if a != b),
        min(len(one), len(other)),
    )


class TestBlocks:
    def test_a_later_turn_begins_with_the_blocks_of_the_earlier_ones(self):
        first = chat("a" * 500)
        later = chat("a" * 500, "b" * 300, "c" * 100)
        assert later[: len(first)] == first
        assert len(later) > len(first) + 5

    def test_one_letter_changes_its_block_and_all_after_it(self):
        text = "x" * 10 * BLOCK
        changed = text[: 5 * BLOCK] + "y" + text[5 * BLOCK + 1 :]
        one, other = (prompt_blocks(body(prompt=p)) for p in (text, changed))
        assert common(one, other) == 5
        assert not {*one[5:]} & {*other[5:]}

    def test_the_same_text_elsewhere_is_another_block(self):
        found = prompt_blocks(body(prompt="z" * 8 * BLOCK))
        assert len({*found}) == len(found)

    def test_names_in_another_order_are_the_same_prompt(self):
        turn = {"role": "user", "content": "w" * 200}
        other = dict(reversed(turn.items()))
        assert prompt_blocks(body(messages=[turn])) == prompt_blocks(
            body(messages=[other])
        )

    @pytest.mark.parametrize("prompt", [[1] * 400, [[2, 3] * 200], ["v" * 400]])
    def test_ids_and_lists_count(self, prompt):
        found = prompt_blocks(body(prompt=prompt))
        assert len(found) > 5
        assert prompt_blocks(body(prompt=prompt, seed=1)) == found

    @pytest.mark.parametrize(
        "bad",
        [
            b"",
            b"{",
            b"\xff",
            b"[]",
            b"7",
            b"[" * 50_000,
            b'{"prompt": ' + b"[" * 5_000 + b"]" * 5_000 + b"}",
            body(prompt=None),
            body(prompt="short"),
        ],
    )
    def test_what_is_no_prompt_has_none(self, bad):
        assert prompt_blocks(bad) == []

    def test_there_are_not_too_many(self):
        found = prompt_blocks(body(prompt="u" * BLOCK * (MOST_BLOCKS + 9)))
        assert len(found) == MOST_BLOCKS


class TestPrefixLRU:
    def test_it_matches_from_the_first_on(self):
        known = PrefixLRU(10)
        known.add([1, 2, 3])
        assert known.match([1, 2, 3, 4]) == 3
        assert known.match([1, 9, 3]) == 1
        assert known.match([2, 3]) == 2  # a number stands for all before it
        assert known.match([]) == 0

    def test_the_end_of_the_oldest_goes_first(self):
        known = PrefixLRU(5)
        known.add([1, 2, 3])
        assert known.add([7, 8, 9]) == ([9, 8, 7], [3])
        assert known.match([1, 2, 3]) == 2

    def test_what_was_used_stays(self):
        known = PrefixLRU(4)
        known.add([1, 2])
        known.add([5, 6])
        known.add([1, 2])
        known.add([8, 9])
        assert known.match([1, 2]) == 2
        assert known.match([5, 6]) == 0

    def test_of_one_that_is_too_long_the_beginning_is_kept(self):
        known = PrefixLRU(3)
        known.add([1, 2, 3, 4, 5])
        assert known.match([1, 2, 3, 4, 5]) == 3
        assert len(known) == 3

    def test_it_needs_room(self):
        with pytest.raises(ValueError, match="capacity must be at least 1"):
            PrefixLRU(0)


NODES = st.lists(st.integers(0, 2), min_size=1, max_size=6)


def path(choices: list[int]) -> list[int]:
    """A prefix as numbers that stand for all before them."""
    found, number = [], 1
    for choice in choices:
        number = number * 3 + choice
        found.append(number)
    return found


@given(st.lists(NODES, max_size=30), st.integers(1, 12))
def test_a_block_is_never_known_without_those_before_it(adds, capacity):
    known, index = PrefixLRU(capacity), PrefixIndex()
    index.join("a", capacity)
    for choices in adds:
        known.add(path(choices))
        index.add("a", path(choices))
        for block in known:
            parent = block // 3
            assert parent < 3 or parent in {*known}
        assert len(known) <= capacity
        assert {*known} == {b for b in range(3**7) if index.longest([b])}


class TestPrefixIndex:
    def index(self) -> PrefixIndex:
        index = PrefixIndex()
        for name in "abc":
            index.join(name, 100)
        index.add("a", [1, 2, 3])
        index.add("b", [1, 2, 3])
        index.add("c", [1])
        return index

    def test_who_knows_most(self):
        index = self.index()
        assert index.longest([1, 2, 3, 4]) == {"a", "b"}
        assert index.longest([1, 5]) == {"a", "b", "c"}
        assert index.longest([5]) == set()
        assert [index.match(name, [1, 2, 3, 4]) for name in "abc"] == [3, 3, 1]

    def test_who_leaves_is_forgotten(self):
        index = self.index()
        index.leave("a")
        index.leave("nobody")
        assert index.longest([1, 2, 3]) == {"b"}
        index.join("b", 100)
        assert index.longest([1, 2]) == {"c"}


class TestPolicies:
    def test_random_takes_all_alike(self):
        policy = RandomPolicy(Random(0))
        loads = {"a": 0, "b": 90, "c": 0}
        taken = [policy.choose([1], loads) for _ in range(300)]
        assert min(taken.count(name) for name in "abc") > 60

    def test_least_loaded_draws_among_equals(self):
        policy = LeastLoadedPolicy(Random(0))
        loads = {"a": 2, "b": 1, "c": 1}
        taken = {policy.choose([1], loads) for _ in range(50)}
        assert taken == {"b", "c"}

    def prefix(self, wait: float = 4.0) -> PrefixPolicy:
        policy = PrefixPolicy(Random(0), wait)
        for name in "abc":
            policy.join(name, 1000)
        return policy

    def test_a_conversation_stays_where_it_began(self):
        policy, loads = self.prefix(), dict.fromkeys("abc", 0)
        blocks = list(range(1, 20))
        where = policy.choose(blocks, loads)
        for number in range(20, 60):
            blocks.append(number)
            assert policy.choose(blocks, loads) == where

    def test_new_ones_go_where_there_is_least_to_do(self):
        policy = self.prefix()
        assert policy.choose([1, 2], {"a": 3, "b": 1, "c": 2}) == "b"

    def test_a_queue_is_worth_so_many_blocks(self):
        policy, prompt = self.prefix(), list(range(1, 41))
        assert policy.choose(prompt, {"a": 0, "b": 1, "c": 1}) == "a"
        assert policy.choose(prompt, {"a": 9, "b": 0, "c": 1}) == "a"
        # 11 x 4 blocks to wait are more than 40 to compute.
        assert policy.choose(prompt, {"a": 11, "b": 0, "c": 1}) == "b"
        # Now two know it, and the one with less to do gets it.
        assert policy.choose(prompt, {"a": 2, "b": 1, "c": 1}) == "b"

    def test_of_equals_the_first_is_chosen_in_every_process(self):
        names = [f"replica {number}" for number in range(30)]
        policy = PrefixPolicy(Random(0))
        for name in names:
            policy.join(name, 1000)
            policy.choose([1, 2, 3], {name: 0})
        for order in (names, names[::-1]):
            assert policy.choose([1, 2, 3], dict.fromkeys(order, 1)) == order[0]

    def test_who_may_not_be_chosen_is_not(self):
        policy, prompt = self.prefix(), list(range(1, 41))
        assert policy.choose(prompt, {"a": 0}) == "a"
        assert policy.choose(prompt, {"b": 5}) == "b"

    def test_who_has_left_knows_nothing(self):
        policy, prompt = self.prefix(), list(range(1, 41))
        policy.choose(prompt, {"a": 0})
        policy.leave("a")
        policy.join("a", 1000)
        assert policy.choose(prompt, {"a": 1, "b": 0, "c": 1}) == "b"


class TestSimulation:
    def outcome(self, name: str, replicas: int):
        policy = POLICIES[name](Random(0))
        return simulate(policy, replicas, Traffic(), Machine(), 120.0)

    def test_prefixes_beat_chance_and_ever_more_so(self):
        ratios = []
        for replicas in (3, 12):
            by = {
                name: self.outcome(name, replicas)
                for name in POLICIES.supported_names()
            }
            assert by["prefix"].hit_rate > 1.3 * by["random"].hit_rate
            assert by["prefix"].wait(0.99) < by["least-loaded"].wait(0.99)
            ratios.append(by["prefix"].hit_rate / by["random"].hit_rate)
        assert ratios[1] > 1.5 * ratios[0]

    def test_one_replica_is_the_same_for_all(self):
        found = [self.outcome(name, 1) for name in POLICIES.supported_names()]
        assert found[0] == found[1] == found[2]
        assert found[0].hit_rate > 0.6

    def test_loads_come_back_to_nothing(self):
        class Watched(LeastLoadedPolicy):
            def choose(self, blocks, loads):
                self.loads = loads
                return super().choose(blocks, loads)

        policy = Watched(Random(0))
        simulate(policy, 3, Traffic(), Machine(), 60.0)
        assert {*policy.loads.values()} == {0}


SERVER = ServerArgs("m", DistributedInfo(0, 1), "auto")


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"replicas": 0}, "replicas must be at least 1"),
        (
            {"policy": "best"},
            "policy 'best' is not supported; use one of random",
        ),
        ({"cpus": 0}, "cpus must be above 0"),
        ({"cpus": float("nan")}, "cpus must be above 0"),
        ({"address": "ray://h:1"}, "address must be auto or HOST:PORT"),
        ({"drain": -1}, "drain must be at least 0"),
    ],
)
def test_settings_that_are_wrong(wrong, says):
    with pytest.raises(ValueError, match=says):
        DeployArgs(SERVER, **wrong)
