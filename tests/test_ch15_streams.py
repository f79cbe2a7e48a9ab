"""Clients that leave, stop strings over HTTP, and who may wait for what."""

import asyncio
import json
import socket
import threading
import time

import pytest

from tests import live
from tests.fakes.back_end import Script, events, served

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


@pytest.fixture(scope="module")
def server():
    with served() as running:
        yield running


class Peer:
    """A client that is only a socket, and so can leave as it likes."""

    def __init__(self, server, path: str, **body):
        if path == CHAT:
            prompt = body.pop("prompt")
            body["messages"] = [{"role": "user", "content": prompt}]
        content = json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(content)}"
            "\r\nContent-Type: application/json\r\n\r\n"
        )
        port = server.client.base_url.port
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=10)
        self.socket.sendall(head.encode() + content)
        self.got = b""

    def read_until(self, count: int) -> None:
        """Read until so many events have come."""
        while self.got.count(b"data: ") < count:
            self._read_more()

    def read_all(self) -> str:
        """Read to the end; the texts of a completion, joined."""
        while b"data: [DONE]" not in self.got:
            self._read_more()
        *found, _ = live.events(self.got.splitlines())
        return "".join(one["choices"][0]["text"] for one in found)

    def _read_more(self) -> None:
        more = self.socket.recv(4096)
        assert more, self.got
        self.got += more

    def leave(self) -> None:
        self.socket.close()


def running(server, prompt: str) -> list[int]:
    """The numbers of this prompt that the engine works on."""
    return [
        uid
        for uid in [*server.engine.due]
        if server.engine.prompt(uid) == prompt
    ]


def assert_aborted(server, prompt: str) -> None:
    """Nobody works for a client that has gone, at most a moment later."""
    assert server.engine.waits(lambda: not running(server, prompt))
    assert server.engine.waits(lambda: server.manager.ack_map == {})


@pytest.mark.parametrize("path", [CHAT, TEXT, "/generate"])
def test_c24_a_client_that_leaves_a_stream(server, path):
    server.engine.scripts["stream"] = Script([" x"] * 10**4, pace=0.02)
    peer = Peer(server, path, prompt="stream", max_tokens=10**4, stream=True)
    peer.read_until(3)
    assert running(server, "stream")
    peer.leave()
    assert_aborted(server, "stream")
    uid = max(server.engine.asked)
    assert server.engine.made[uid] < 100
    server.answers()


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", [CHAT, TEXT, "/generate"])
def test_c24_a_client_that_leaves_before_the_first_token(server, path, stream):
    server.engine.scripts["queued"] = Script(pace=60)
    peer = Peer(server, path, prompt="queued", max_tokens=9, stream=stream)
    assert server.engine.waits(lambda: running(server, "queued"))
    peer.leave()
    assert_aborted(server, "queued")
    assert server.engine.made[max(server.engine.asked)] == 0
    server.answers()


def test_c24_a_client_that_waits_for_a_whole_answer_and_leaves(server):
    server.engine.scripts["whole"] = Script([" x"] * 10**4, pace=0.005)
    peer = Peer(server, CHAT, prompt="whole", n=2)
    assert server.engine.waits(lambda: len(running(server, "whole")) == 2)
    peer.leave()
    assert_aborted(server, "whole")
    server.answers()


def test_c24_all_answers_of_a_request_are_aborted(server):
    server.engine.scripts["many"] = Script([" x"] * 10**4, pace=0.005)
    body = {"n": 3, "stream": True, "max_tokens": 10**4}
    peer = Peer(server, TEXT, prompt=["many", "many"], **body)
    assert server.engine.waits(lambda: len(running(server, "many")) == 6)
    peer.leave()
    assert_aborted(server, "many")


def test_c24_a_stream_that_nobody_reads_and_then_leaves(server):
    server.engine.scripts["unread"] = Script([" x" * 2000] * 10**4)
    peer = Peer(server, TEXT, prompt="unread", max_tokens=10**4, stream=True)
    assert server.engine.waits(lambda: running(server, "unread"))
    time.sleep(0.3)
    peer.leave()
    assert_aborted(server, "unread")


def test_c24_twenty_leave_at_once(server):
    server.engine.scripts["crowd"] = Script([" x"] * 10**4, pace=0.01)
    peers = [
        Peer(server, CHAT, prompt="crowd", stream=i % 2 == 0) for i in range(20)
    ]
    assert server.engine.waits(lambda: len(running(server, "crowd")) == 20)
    for peer in peers:
        peer.leave()
    assert_aborted(server, "crowd")
    server.answers()


def test_a_client_that_stays_is_not_aborted(server):
    before = len(server.engine.aborted)
    for fields in ({}, {"stream": True}, {"n": 2, "stream": True}):
        server.chat("stays", **fields)
    time.sleep(0.05)
    assert len(server.engine.aborted) == before


def test_a_reply_that_nobody_waits_for_is_aborted_again(server):
    """The abort of a queued request may overtake it on its way."""
    server.engine.scripts["late"] = Script([" x"] * 10**4, pace=0.05)
    peer = Peer(server, TEXT, prompt="late", max_tokens=10**4, stream=True)
    peer.read_until(1)
    uid = max(server.engine.asked)
    peer.leave()
    assert_aborted(server, "late")
    server.engine.due[uid] = 0  # as if the abort had come too early
    assert server.engine.waits(lambda: server.engine.aborted.count(uid) == 2)
    assert not running(server, "late")


def test_a_reply_that_cannot_be_read_harms_nobody(server):
    server.engine.scripts["steady"] = Script([" x"] * 20, pace=0.02)
    peer = Peer(server, TEXT, prompt="steady", max_tokens=20, stream=True)
    peer.read_until(3)
    server.engine.push.put_raw(b"\xc1")
    server.engine.push.put_raw(b"\x81\xa8__type__\xa7Unheard")
    assert peer.read_all() == 20 * " x"
    peer.leave()
    server.answers()


PIECES = [" Hello", " wor", "ld,", " how", " are", " you", "?"]


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize(
    ("stop", "text", "count"),
    [
        ("world", " Hello ", 3),
        ([" how"], " Hello world,", 4),
        (["nowhere", "e y"], " Hello world, how ar", 6),
        (["o"], " Hell", 1),
        (["x", "you?"], " Hello world, how are ", 7),
        (["you??"], " Hello world, how are you?", 8),
        ([" Hello"], "", 1),
        ("nowhere", " Hello world, how are you?", 8),
    ],
)
def test_c16_stop_strings_across_tokens(server, path, stop, text, count):
    server.engine.scripts["greet"] = Script(PIECES, pace=0.003)
    ask = server.chat if path == CHAT else server.complete
    body = ask("greet", stop=stop).json()
    choice = body["choices"][0]
    got = choice["message"]["content"] if path == CHAT else choice["text"]
    assert got == text and choice["finish_reason"] == "stop"
    assert body["usage"]["completion_tokens"] == count
    fields = {"stream": True, "stream_options": {"include_usage": True}}
    *chunks, end, last = events(ask("greet", stop=stop, **fields))
    parts = [c["choices"][0] for c in [*chunks, end]]
    joined = [
        p["delta"].get("content", "") if path == CHAT else p["text"]
        for p in parts
    ]
    assert "".join(joined) == text
    assert end["choices"][0]["finish_reason"] == "stop"
    assert last["usage"] == body["usage"]


def test_c16_a_stop_string_ends_the_work(server):
    server.engine.scripts["runs on"] = Script([" go"] * 10**4, pace=0.2)
    assert server.chat("runs on", stop="go go").json()
    assert_aborted(server, "runs on")
    assert server.engine.made[max(server.engine.asked)] == 2
    server.answers()


def test_c16_what_may_begin_a_stop_string_waits(server):
    server.engine.scripts["held"] = Script(["a", "\n", "\n", "b"], pace=0.003)
    found = events(server.complete("held", stop="\n\n\n", stream=True))
    texts = [e["choices"][0]["text"] for e in found]
    assert "".join(texts) == "a\n\nb"
    assert not any(text.endswith("\n") for text in texts)
    found = events(
        server.complete("held", stop="b\n", stream=True, max_tokens=4)
    )
    last = found[-1]["choices"][0]
    assert last.pop("text").endswith("b")
    assert last == {"index": 0, "logprobs": None, "finish_reason": "length"}


def test_c16_a_stop_string_of_one_answer_is_not_that_of_another(server):
    server.engine.scripts["one"] = Script(["s", "t", "op", "x"])
    server.engine.scripts["two"] = Script(["s", "t", "o", "x"])
    body = server.complete(["one", "two", "one"], stop=["stop"]).json()
    assert [c["text"] for c in body["choices"]] == ["", "stox", ""]


def test_c17_logprobs_end_with_the_text(server):
    server.engine.scripts["lps"] = Script(PIECES)
    for fields, tokens in (
        ({"stop": "how"}, [" Hello", " wor", "ld,", " how"]),
        ({"stop": " how"}, [" Hello", " wor", "ld,"]),
        ({"stop": "nowhere"}, PIECES),
        ({"stop": "?!"}, PIECES),
    ):
        fields |= {"logprobs": True}
        whole = server.chat("lps", **fields).json()["choices"][0]["logprobs"]
        assert [e["token"] for e in whole["content"]] == tokens
        streamed = []
        for event in events(server.chat("lps", stream=True, **fields)):
            choice = event["choices"][0]
            entries = (choice["logprobs"] or {"content": []})["content"]
            streamed += entries
            text = choice["delta"].get("content", "")
            assert not entries or text in "".join(e["token"] for e in entries)
        assert streamed == whole["content"]


def test_c17_a_token_without_text_has_logprobs_too(server):
    server.engine.scripts["silent"] = Script(["", "a", "", ""])
    for ask in (server.chat, server.complete):
        found = events(
            ask("silent", stream=True, logprobs=ask == server.chat or 0)
        )
        tokens = []
        for event in found:
            logprobs = event["choices"][0]["logprobs"] or {}
            tokens += [e["token"] for e in logprobs.get("content", ())]
            tokens += logprobs.get("tokens", ())
        assert tokens == ["", "a", "", ""]


def test_c23_fifty_clients_do_not_wait_for_one_another(server):
    server.engine.scripts["together"] = Script([" x"] * 10, pace=0.02)
    answers = []

    def ask() -> None:
        peer = Peer(server, TEXT, prompt="together", stream=True)
        answers.append(peer.read_all())
        peer.leave()

    threads = [threading.Thread(target=ask) for _ in range(50)]
    begin = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == 50 * [10 * " x"] and time.monotonic() - begin < 5


def test_the_first_event_does_not_wait_for_the_last(server):
    server.engine.scripts["paced"] = Script([" x"] * 10, pace=0.05)
    begin = time.monotonic()
    peer = Peer(server, CHAT, prompt="paced", stream=True)
    peer.read_until(2)
    assert time.monotonic() - begin < 0.3
    peer.leave()


def test_the_manager_serves_a_shell_too(server):
    from minisgl.message import TokenizeMsg
    from minisgl.sampling_params import SamplingParams

    async def ask() -> list[str]:
        uid = server.manager.new_user()
        await server.manager.send_one(TokenizeMsg(uid, "sh", SamplingParams()))
        await asyncio.sleep(0.1)  # all has come before anybody asks for it
        replies = server.manager.wait_for_ack(uid)
        return [reply.incremental_output async for reply in replies]

    asked = asyncio.run_coroutine_threadsafe(ask(), server.loop)
    assert asked.result(10) == [" one", " two", " three", ""]
    status = asyncio.run_coroutine_threadsafe(
        server.manager.status(), server.loop
    )
    assert status.result(10)["running"] == 1
    assert server.manager.ack_map == {}
