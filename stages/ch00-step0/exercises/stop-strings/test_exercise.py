"""Stop strings: where an answer ends, in whatever pieces it comes, and how soon."""

import importlib.util
import random
from pathlib import Path

import pytest

PATH = Path(__file__).parents[2] / "stop.py"
SPEC = importlib.util.spec_from_file_location("step0_stop", PATH)
stop = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(stop)


def shown(pieces, stops):
    """What comes out in all, and whether a stop string was met."""
    found = stop.StopFilter(stops)
    text = "".join(found.push(piece) for piece in pieces)
    return text + found.finish(), found.stopped


def expected(text, stops):
    """The same by definition: character by character."""
    for end in range(1, len(text) + 1):
        sizes = [len(s) for s in stops if text[:end].endswith(s)]
        if sizes:
            return text[: end - max(sizes)], True
    return text, False


def test_the_answer_ends_before_the_stop_string():
    assert shown(["Yes.\n\nUser: and"], ["\n\nUser:"]) == ("Yes.", True)
    assert shown(["Yes.\n", "\nUs", "er", ": and"], ["\n\nUser:"]) == (
        "Yes.",
        True,
    )


def test_without_one_all_of_it_comes_out():
    assert shown(["ab", "ca", "b"], ["abd"]) == ("abcab", False)
    assert shown(["ab"], []) == ("ab", False)


def test_nothing_comes_out_after_the_end():
    found = stop.StopFilter(["x"])
    assert [found.push("axb"), found.push("c"), found.finish()] == ["a", "", ""]


def test_what_is_complete_first_counts_not_what_begins_first():
    assert shown(["abcd"], ["abcd", "bc"]) == ("a", True)
    assert shown([*"abcd"], ["abcd", "bc"]) == ("a", True)


def test_the_longest_of_those_that_end_together():
    assert shown(["xabc"], ["bc", "abc"]) == ("x", True)


def test_text_is_held_only_while_it_may_begin_a_stop_string():
    found = stop.StopFilter(["</s>", "###"])
    said = [found.push(piece) for piece in ["a", "<", "/", "b", "#", "#", "!"]]
    assert said == ["a", "", "", "</b", "", "", "##!"]


def test_an_empty_stop_string_is_refused():
    with pytest.raises(ValueError, match="empty"):
        stop.StopFilter(["a", ""])


def test_any_cut_of_any_text_gives_the_same():
    rng = random.Random(0)
    for _ in range(2000):
        text = "".join(rng.choices("ab", k=rng.randint(0, 12)))
        stops = [
            "".join(rng.choices("ab", k=rng.randint(2, 4)))
            for _ in range(rng.randint(1, 3))
        ]
        pieces, left = [], text
        while left:
            size = rng.randint(1, 3)
            pieces.append(left[:size])
            left = left[size:]
        assert shown(pieces, stops) == expected(text, stops), (pieces, stops)


def test_text_comes_out_as_soon_as_it_can():
    rng = random.Random(1)
    for _ in range(500):
        stops = ["".join(rng.choices("ab", k=rng.randint(2, 4)))]
        found, out, whole = stop.StopFilter(stops), "", ""
        for piece in rng.choices(["a", "b", "ab", "c"], k=8):
            whole += piece
            out += found.push(piece)
            if found.stopped:
                break
            begins = [stops[0][:n] for n in range(1, len(stops[0]))]
            held = max([len(b) for b in begins if whole.endswith(b)], default=0)
            assert out == whole[: len(whole) - held], (whole, stops)
