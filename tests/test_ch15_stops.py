"""Stop strings: found wherever the text is cut, and nothing else is held back."""

import time
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minisgl.server.stops import StopStrings

LETTERS = st.text("ab", max_size=40)
STOPS = st.lists(st.text("ab", min_size=1, max_size=5), max_size=3)


def run(pieces: list[str], stops: list[str]) -> tuple[list[str], bool]:
    """What is shown for each piece, flushed at the end, and whether it stopped."""
    strings, shown = StopStrings(stops), []
    for piece in pieces:
        text, stopped = strings.feed(piece)
        shown.append(text)
        if stopped:
            return shown, True
    return [*shown, strings.flush()], False


def expected(text: str, stops: list[str]) -> tuple[str, bool]:
    """Straight from the definition: the first end of a stop, the longest there."""
    for end in range(1, len(text) + 1):
        found = [s for s in stops if text[:end].endswith(s)]
        if found:
            return text[: end - max(map(len, found))], True
    return text, False


@settings(max_examples=500, deadline=None)
@given(LETTERS, STOPS, st.lists(st.integers(0, 40), max_size=6))
def test_any_pieces_give_what_the_whole_text_gives(text, stops, cuts):
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[a:b] for a, b in pairwise(edges)]
    shown, stopped = run(pieces, stops)
    assert ("".join(shown), stopped) == expected(text, stops)


@settings(max_examples=300, deadline=None)
@given(LETTERS, STOPS)
def test_only_what_may_begin_a_stop_is_held_back(text, stops):
    strings = StopStrings(stops)
    seen = shown = ""
    for char in text:
        seen += char
        piece, stopped = strings.feed(char)
        shown += piece
        if stopped:
            break
        held = seen[len(shown) :]
        begins = [
            s[:k] for s in stops for k in range(len(s)) if seen.endswith(s[:k])
        ]
        assert held == max(begins, key=len, default="")


@pytest.mark.parametrize(
    ("pieces", "stops", "shown"),
    [
        (["a\n", "\nb"], ["\n\n"], ["a", ""]),
        (["one tw", "o thr", "ee"], ["two"], ["one ", ""]),
        (["END"], ["END"], [""]),
        (["aab", "aac"], ["aaac", "baac"], ["aa", ""]),
        (["xabcx"], ["b", "abc"], ["xa"]),  # the first that is complete
        (["xabc"], ["bc", "abc"], ["x"]),  # both are: the longest
        (["你好", "吗?"], ["好吗"], ["你", ""]),
    ],
)
def test_cut_before_the_stop_string(pieces, stops, shown):
    assert run(pieces, stops) == (shown, True)


def test_without_a_stop_string_every_piece_passes_at_once():
    assert run(["a", "", "bc"], []) == (["a", "", "bc", ""], False)


def test_a_beginning_that_comes_to_nothing_is_shown_after_all():
    assert run(["a<", "b<", "c<"], ["<e"]) == (["a", "<b", "<c", "<"], False)


def test_the_time_is_linear_in_the_worst_case():
    strings = StopStrings(["a" * 20_000 + "b"])
    begin = time.perf_counter()
    for _ in range(2000):
        strings.feed("a" * 20 + "c")
    assert time.perf_counter() - begin < 2
