"""Where a router without memory sends requests, alone and among others."""

import subprocess
import sys
from collections import Counter
from random import Random

import pytest

from minisgl.deploy.policy import RandomPolicy
from minisgl.deploy.rendezvous import RendezvousPolicy, weight
from minisgl.deploy.simulate import Machine, simulate
from minisgl.deploy.traffic import Traffic

NAMES = [f"replica-{number}" for number in range(8)]
IDLE = dict.fromkeys(NAMES, 0)
KEYS = range(4000)


def prompt(key: int, length: int = 60) -> list[int]:
    """Blocks of which the 40th one is `key`."""
    found = list(range(-length, 0))
    if length >= 40:
        found[39] = key
    return found


def choices(loads=IDLE, rng: int = 0) -> list[str]:
    policy = RendezvousPolicy(Random(rng))
    return [policy.choose(prompt(key), loads) for key in KEYS]


def test_weights_are_numbers_of_64_bits_that_never_change():
    assert weight("a", 1) == weight("a", 1)
    assert len({weight(n, k) for n in NAMES for k in range(99)}) == 8 * 99
    high = [weight(n, k) > 2**63 for n in NAMES for k in range(500)]
    assert 0.45 < sum(high) / len(high) < 0.55
    assert all(0 <= weight("b", k) < 2**64 for k in range(500))


def test_every_process_has_the_same():
    here = f"{weight('a', 5)} {weight('b', -3)}\n"
    code = "from minisgl.deploy.rendezvous import weight\n"
    code += "print(weight('a', 5), weight('b', -3))"
    command = [sys.executable, "-c", code]
    said = {subprocess.check_output(command, text=True) for _ in range(2)}
    assert said == {here}


def test_two_routers_agree_and_share_out_evenly():
    assert choices(rng=1) == choices(rng=2)
    counts = Counter(choices())
    assert len(counts) == 8
    assert max(counts.values()) < 1.3 * len(KEYS) / 8


def test_only_the_keys_of_one_that_leaves_move():
    before = choices()
    after = choices({name: 0 for name in NAMES if name != "replica-3"})
    for old, new in zip(before, after, strict=True):
        assert new == old or old == "replica-3"
    assert len({n for o, n in zip(before, after, strict=True) if o != n}) == 7


def test_what_comes_after_the_beginning_does_not_count():
    policy = RendezvousPolicy()
    one = prompt(7)
    assert policy.choose(one, IDLE) == policy.choose([*one, 9, 9], IDLE)
    assert policy.choose(prompt(7)[:40], IDLE) == policy.choose(one, IDLE)


def test_short_prompts_have_a_place_too():
    policy = RendezvousPolicy()
    assert {policy.choose(list(range(n)), IDLE) for n in range(40)} <= {*NAMES}
    assert len({policy.choose([n], IDLE) for n in range(50)}) > 4


@pytest.mark.parametrize("bound", [1.0, 2.0])
def test_nobody_gets_more_than_the_bound(bound):
    policy = RendezvousPolicy(bound=bound)
    loads = dict.fromkeys(NAMES, 0)
    for number in range(80):  # all with the same beginning
        loads[policy.choose(prompt(7), loads)] += 1
        assert max(loads.values()) <= -(-bound * (number + 1) // 8)
    # At each moment the best one that is not full.
    order = sorted(NAMES, key=lambda name: -weight(name, 7))
    assert [loads[name] for name in order] == sorted(loads.values())[::-1]


def test_most_of_the_hits_without_any_memory():
    work = (12, Traffic(), Machine(), 120.0)
    mine = simulate(RendezvousPolicy(Random(0)), *work)
    chance = simulate(RandomPolicy(Random(0)), *work)
    assert mine.hit_rate > 2 * chance.hit_rate
    assert mine.wait(0.99) < chance.wait(0.99)
