"""From replies to events: what waits is joined, and what is sent is the same."""

import asyncio
import json

import pytest

from minisgl.message import UserReply
from minisgl.sampling_params import SamplingParams
from minisgl.server.chat import ChatWriter
from minisgl.server.chat_request import ChatCompletionRequest
from minisgl.server.completions import TextWriter
from minisgl.server.generation import Generation, Piece
from minisgl.server.protocol import OpenAICompletionRequest
from minisgl.server.streams import event
from tests.fakes.frontend import Frontend

ODD = ["a", ' "quoted" \\ ', "\u2028\n", "é\u200b", "😀", "\uffff", "</s>", "z"]


def reply(uid, text, finish_reason=None, **more):
    ended = finish_reason is not None
    return UserReply(
        uid, text, ended, finish_reason, completion_tokens=1, **more
    )


def pieces_of(replies, prompts=1, stops=(), slow=False):
    """The pieces of a generation; `slow`: all but the first replies wait."""

    async def run():
        frontend = Frontend()
        made = Generation(frontend, ["x"] * prompts, SamplingParams(), 1, stops)
        queue = await frontend.begin(made, replies[:prompts])
        rest = replies[prompts:]
        if slow:
            for one in rest:
                queue.put_nowait(one)
            rest = []
        found = []
        stream = made.pieces()
        for _ in range(prompts):
            found.append(await anext(stream))
        for one in rest:
            queue.put_nowait(one)
            found.append(await anext(stream))
        async for piece in stream:
            found.append(piece)
        return found, made, frontend

    return asyncio.run(run())


def shown(pieces):
    return [(piece.index, piece.text, piece.finish_reason) for piece in pieces]


def test_a_client_that_keeps_up_gets_every_token_by_itself():
    replies = [reply(0, c) for c in "abcd"] + [reply(0, "e", "length")]
    found, made, _ = pieces_of(replies)
    assert [piece.text for piece in found] == list("abcde")
    assert found[-1].finish_reason == "length" and made.tokens.completion == 5


def test_what_waits_is_one_piece():
    replies = [reply(0, c) for c in "abcd"] + [reply(0, "e", "length")]
    found, made, _ = pieces_of(replies, slow=True)
    assert shown(found) == [(0, "a", None), (0, "bcde", "length")]
    assert made.tokens.completion == 5


def test_logprobs_of_what_waits_stay_in_their_order():
    first, *rest = (
        reply(0, c, "stop" if c == "d" else None, logprobs=[{"token": c}])
        for c in "abcd"
    )
    found, _, _ = pieces_of([first, *rest], slow=True)
    assert [e["token"] for e in found[1].logprobs] == list("bcd")


def test_what_waits_is_one_piece_of_each_answer():
    """A step of the engine gives each a token: they come in turn."""
    replies = [reply(0, "a"), reply(1, "b")]
    replies += [reply(i % 2, c) for i, c in enumerate("cdefgh")]
    replies += [reply(0, "i", "stop"), reply(1, "j", "length")]
    found, made, _ = pieces_of(replies, prompts=2, slow=True)
    assert shown(found)[2:] == [(0, "cegi", "stop"), (1, "dfhj", "length")]
    assert made.tokens.completion == len(replies)


def test_more_answers_to_a_prompt_wait_alike():
    async def run():
        frontend = Frontend()
        made = Generation(frontend, ["x"], SamplingParams(), 3)
        queue = await frontend.begin(made, [reply(0, "a")])
        for uid in (1, 2, 0, 1, 2):
            queue.put_nowait(reply(uid, str(uid)))
        for uid in (0, 1, 2):
            queue.put_nowait(reply(uid, "z", "length"))
        return [piece async for piece in made.pieces()]

    assert shown(asyncio.run(run())) == [
        (0, "a", None),
        (0, "0z", "length"),
        (1, "11z", "length"),
        (2, "22z", "length"),
    ]


def test_what_comes_before_the_last_prompt_begins_is_joined():
    replies = [reply(0, "a"), reply(0, "b"), reply(0, "c"), reply(1, "d")]

    async def run():
        frontend = Frontend()
        made = Generation(frontend, ["x", "y"], SamplingParams())
        await frontend.begin(made, replies)
        stream = made.pieces()
        return [await anext(stream) for _ in range(2)]

    assert shown(asyncio.run(run())) == [(0, "abc", None), (1, "d", None)]


def test_an_error_ends_what_waited_before_it():
    failed = UserReply(0, "", True, "error", "it broke")
    found, _, _ = pieces_of([reply(0, "a"), reply(0, "b"), failed], slow=True)
    assert shown(found) == [(0, "a", None), (0, "b", "error")]
    assert found[1].error is not None


def test_an_error_that_waits_behind_a_first_token_is_no_status():
    """Whether a client gets an error as a status must not be a matter of luck."""

    async def run():
        frontend = Frontend()
        made = Generation(frontend, ["x"], SamplingParams())
        failed = UserReply(0, "", True, "error", "it broke")
        await frontend.begin(made, [reply(0, "a"), failed])
        return [piece async for piece in made.pieces()]

    assert shown(asyncio.run(run())) == [(0, "a", None), (0, "", "error")]


def test_tokens_after_a_stop_string_do_not_hold_anybody_up():
    replies = [reply(0, "a"), reply(1, "b")]
    replies += [reply(0, "END"), reply(0, "late"), reply(1, "c", "length")]
    found, _, frontend = pieces_of(replies, prompts=2, stops=["END"], slow=True)
    assert shown(found)[2:] == [(0, "", "stop"), (1, "c", "length")]
    assert frontend.released == [0]


def chat(**more):
    turns = [{"role": "user", "content": "hi"}]
    body = ChatCompletionRequest(model="tiny", messages=turns, **more)
    return ChatWriter("tiny", body)


def text(**more):
    body = OpenAICompletionRequest(model="tiny", prompt="hi", **more)
    return TextWriter("tiny", body)


USAGE = {"stream": True, "stream_options": {"include_usage": True}}


@pytest.mark.parametrize("make", [chat, text])
@pytest.mark.parametrize("more", [{}, USAGE, {"n": 2}])
def test_events_are_those_of_their_chunks(make, more):
    fast, slow = make(**more), make(**more)
    slow._head = fast._head
    count = 0
    for number, word in enumerate([*ODD, "the end"]):
        for index in range(2):
            ends = "length" if word == "the end" else None
            piece = Piece(index, word, finish_reason=ends)
            got = list(fast.events(piece))
            expected = [event(chunk) for chunk in slow.chunks(piece)]
            assert [json.loads(one[6:]) for one in got] == [
                json.loads(one[6:]) for one in expected
            ], (number, word)
            assert all(one.isascii() and one.endswith("\n\n") for one in got)
            assert all(one.count("\n") == 2 for one in got)
            count += len(got)
    assert count >= 2 * len(ODD)


def test_only_the_text_is_written_for_a_piece_of_text(monkeypatch):
    writer = chat()
    list(writer.events(Piece(0, "a")))
    monkeypatch.setattr(ChatWriter, "chunks", None)
    [one] = writer.events(Piece(0, "b"))
    assert json.loads(one[6:])["choices"][0]["delta"] == {"content": "b"}


def test_logprobs_are_in_the_event_of_their_text():
    writer = chat(logprobs=True, top_logprobs=0)
    entry = {"token": "b", "logprob": -1.0, "bytes": [98], "top_logprobs": []}
    list(writer.events(Piece(0, "a")))
    [one] = writer.events(Piece(0, "b", [entry]))
    choice = json.loads(one[6:])["choices"][0]
    assert choice["logprobs"]["content"][0]["token"] == "b"
