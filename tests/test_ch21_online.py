"""Clients with a clock: arrivals, traces, waits, and a server that is real."""

import asyncio
import io
import json
import time
from collections.abc import AsyncIterator
from itertools import pairwise
from random import Random

import httpx2
import openai
import pytest
from typer.testing import CliRunner

from minisgl.benchmark.__main__ import app
from minisgl.benchmark.client import (
    BenchmarkResult,
    BenchmarkTrace,
    BenchOneResult,
    OpenAI,
    RawResult,
    _lines,
    benchmark_one,
    benchmark_one_batch,
    benchmark_trace,
    generate_prompt,
    get_model_name,
    process_benchmark_results,
    read_mooncake_trace,
    read_qwen_trace,
    scale_traces,
)
from minisgl.benchmark.online import (
    Plan,
    Rate,
    Target,
    add_row,
    arrivals,
    measure_online,
    new_report,
    run_online,
)
from minisgl.benchmark.report import Report
from minisgl.benchmark.traces import text_of
from minisgl.benchmark.workload import Workload
from minisgl.utils import load_tokenizer
from tests.live import Live
from tests.parity import model_under_test, prompts, reference
from tools.models import model_path

WAIT, GAP = 0.08, 0.03
WORK = Workload(6, 3, 8)


class FakeServer:
    """Answers with `max_tokens` pieces; counts what it is asked, and at once.

    usage: whether it counts tokens.
    """

    def __init__(self, usage: bool = True, status: int = 200) -> None:
        self.bodies: list[dict] = []
        self.when: list[float] = []
        self.now = self.most = 0
        self.usage, self.status = usage, status

    def client(self) -> OpenAI:
        http = httpx2.AsyncClient(transport=httpx2.MockTransport(self.answer))
        return OpenAI(
            base_url="http://fake/v1",
            api_key="none",
            http_client=http,
            max_retries=0,
        )

    async def answer(self, request: httpx2.Request) -> httpx2.Response:
        if request.method == "GET":
            models = [{"id": "fake", "object": "model", "created": 0}]
            return httpx2.Response(200, json={"object": "list", "data": models})
        body = json.loads(request.content)
        self.bodies.append(body)
        self.when.append(time.perf_counter())
        if self.status != 200:
            return httpx2.Response(
                self.status, json={"error": {"message": "no"}}
            )
        server = self

        class Events(httpx2.AsyncByteStream):
            async def __aiter__(self) -> AsyncIterator[bytes]:
                server.now += 1
                server.most = max(server.most, server.now)
                for event in server.events(body):
                    if isinstance(event, float):
                        await asyncio.sleep(event)
                    else:
                        yield f"data: {json.dumps(event)}\n\n".encode()
                server.now -= 1
                yield b"data: [DONE]\n\n"

        return httpx2.Response(200, stream=Events())

    def events(self, body: dict):
        def delta(**what: str) -> dict:
            return {"choices": [{"index": 0, "delta": what}], "usage": None}

        # Many servers say who speaks long before there is anything to say.
        yield delta(role="assistant", content="")
        yield WAIT
        for _ in range(body["max_tokens"]):
            yield delta(content="x")
            yield GAP
        yield delta()
        if self.usage:
            counts = {"prompt_tokens": 77, "completion_tokens": 99}
            yield {"choices": [], "usage": counts}


async def ask(server: FakeServer, **more) -> RawResult:
    async with server.client() as client:
        return await benchmark_one(client, "hello", 4, "fake", **more)


def test_one_request_and_when_its_pieces_came():
    server = FakeServer()
    result = asyncio.run(ask(server))
    [body] = server.bodies
    assert body["messages"] == [{"role": "user", "content": "hello"}]
    assert body["max_tokens"] == 4 and body["temperature"] == 0
    assert body["stream"] and body["ignore_eos"] and body["model"] == "fake"
    assert (result.input_len, result.output_len) == (77, 99)
    assert result.message == "hello" and len(result.tics) == 5
    one = BenchOneResult(result.tics, 77, 99)
    # The first piece with text counts, not the one that says who speaks.
    assert one.first > 0.9 * WAIT
    assert len(one.gaps) == 3 and all(gap > 0.9 * GAP for gap in one.gaps)
    assert sum(one.gaps) == pytest.approx(result.tics[-1] - result.tics[1])


def test_a_server_that_does_not_count():
    server = FakeServer(usage=False)
    result = asyncio.run(ask(server, input_length=5, extra_body={"top_k": 1}))
    assert (result.input_len, result.output_len) == (5, 4)
    [body] = server.bodies
    assert body["top_k"] == 1 and "ignore_eos" not in body


def test_reasoning_is_text_too():
    server = FakeServer()
    said = {"choices": [{"index": 0, "delta": {"reasoning_content": "hm"}}]}
    server.events = lambda body: [said, said, {"choices": []}]
    result = asyncio.run(ask(server))
    assert len(result.tics) == 3 and result.output_len == 2


def test_an_answer_that_fails_halfway_is_no_answer():
    server = FakeServer()
    said = {"choices": [{"index": 0, "delta": {"content": "hm"}}]}
    server.events = lambda body: [said, {"error": {"message": "lost a rank"}}]
    with pytest.raises(openai.OpenAIError, match="lost a rank"):
        asyncio.run(ask(server))


def test_a_refusal_is_the_clients_error():
    with pytest.raises(openai.OpenAIError):
        asyncio.run(ask(FakeServer(status=500)))


async def batch(server: FakeServer, lengths) -> list[RawResult]:
    async with server.client() as client:
        assert await get_model_name(client) == "fake"
        return await benchmark_one_batch(
            client, ["a", "b", "c"], lengths, "fake", input_lengths=[1, 2, 3]
        )


def test_a_batch_is_asked_at_once_and_answered_in_order():
    server = FakeServer(usage=False)
    results = asyncio.run(batch(server, [3, 1, 2]))
    assert [r.message for r in results] == ["a", "b", "c"]
    assert [r.output_len for r in results] == [3, 1, 2]
    assert [r.input_len for r in results] == [1, 2, 3]
    assert server.most == 3
    same = asyncio.run(batch(FakeServer(usage=False), 2))
    assert [r.output_len for r in same] == [2, 2, 2]
    with pytest.raises(openai.OpenAIError):
        asyncio.run(batch(FakeServer(status=400), 2))


def test_a_trace_is_asked_at_its_times_and_waits_from_when_it_was_due():
    server = FakeServer()
    traces = [BenchmarkTrace(t, f"at {t}", 1, 9) for t in (0.3, 0.0, 0.15)]

    async def replay() -> tuple[float, list[RawResult]]:
        async with server.client() as client:
            begin = time.perf_counter()
            task = asyncio.create_task(benchmark_trace(client, traces, "fake"))
            await asyncio.sleep(0.05)
            time.sleep(0.2)  # what is due meanwhile can only be asked later
            return begin, await task

    begin, results = asyncio.run(replay())
    assert [r.message for r in results] == ["at 0.3", "at 0.0", "at 0.15"]
    _, second, third = (when - begin for when in server.when)
    assert second > 0.24 and third >= 0.3
    dues = [result.tics[0] - results[1].tics[0] for result in results]
    assert dues == pytest.approx([0.3, 0.0, 0.15])
    # It was asked at least 90 ms after it was due, and has waited since then.
    assert results[2].tics[1] - results[2].tics[0] > 0.09 + 0.9 * WAIT


def test_results_as_json_and_back():
    one = BenchOneResult([0.5, 1.0, 2.5], 7, 2)
    assert one.as_json() == [7, 2, 0.5, 1.0, 2.5]
    found = BenchmarkResult([one, BenchOneResult([0.0, 3.0], 1, 1)])
    assert BenchmarkResult.from_json(found.as_json()) == found
    assert one.first == 0.5 and one.gaps == [1.5]


def test_results_without_text_are_left_out_and_prompts_are_counted():
    class Words:
        def encode(self, text: str) -> list[str]:
            return text.split()

    raw = [
        RawResult(None, 2, "one two three", [0.0, 1.0, 2.0]),
        RawResult(5, 1, "one", [0.0, 1.0]),
        RawResult(5, 0, "one", [0.0]),
    ]
    found = process_benchmark_results(raw, Words())
    assert [one.input_len for one in found.raw_data] == [3, 5]
    assert process_benchmark_results(raw).raw_data[0].input_len == 0
    assert process_benchmark_results(raw[2:]) is None


def test_arrivals_are_random_and_have_their_rate():
    traces = [BenchmarkTrace(0.0, str(i), 1) for i in range(2000)]
    found = arrivals(traces, 5.0, Random(3))
    times = [t.timestamp for t in found]
    waits = [b - a for a, b in pairwise(times)]
    assert times[0] == 0 and times == sorted(times)
    assert [t.message for t in found] == [t.message for t in traces]
    mean = sum(waits) / len(waits)
    assert mean == pytest.approx(1 / 5, rel=0.1)
    # Exponential: they vary as much as they are long.
    spread = (sum((w - mean) ** 2 for w in waits) / len(waits)) ** 0.5
    assert spread == pytest.approx(mean, rel=0.1)
    assert arrivals(traces, 5.0, Random(3)) == found
    assert arrivals(traces, 5.0, Random(4)) != found
    together = arrivals(traces, float("inf"), Random(3))
    assert {t.timestamp for t in together} == {0.0}


def test_rates():
    assert Rate.parse("4.5") == Rate(4.5)
    assert Rate.parse("inf") == Rate(float("inf"))
    assert Rate.parse("80%") == Rate(0.8, relative=True)
    for wrong in ("", "0", "-1", "nan", "inf%", "%", "fast", "0%"):
        with pytest.raises(ValueError, match="rate"):
            Rate.parse(wrong)


@pytest.mark.parametrize("name", ["qwen3-tiny", None])
def test_prompts_have_the_length_that_is_wanted(name):
    tokenizer = load_tokenizer(str(model_path(name))) if name else None
    for n in (1, 7, 40):
        text = generate_prompt(tokenizer, n)
        size = (
            len(text.split())
            if name is None
            else len(tokenizer(text).input_ids)
        )
        assert size == n
        assert generate_prompt(tokenizer, 40) != generate_prompt(tokenizer, 40)
        assert text_of(tokenizer, n, Random(1)) == text_of(
            tokenizer, n, Random(1)
        )
    assert text_of(tokenizer, 0, Random(1)) == ""


@pytest.mark.parametrize("name", ["qwen3-tiny", "llama3-tiny"])
def test_no_draw_leaves_half_a_character_at_the_end(name):
    """Such an end is read as several tokens, however often it is redrawn."""
    tokenizer = load_tokenizer(str(model_path(name)))
    for seed in range(200):
        ids = tokenizer.encode(
            text_of(tokenizer, 7, Random(seed)), add_special_tokens=False
        )
        assert len(ids) == 7, seed


def write_trace(path, lines) -> str:
    path.write_text("".join(json.dumps(line) + "\n\n" for line in lines))
    return str(path)


def test_mooncake_traces_share_what_their_hashes_share(tmp_path):
    lines = [
        {
            "timestamp": 27000,
            "input_length": 1100,
            "output_length": 5,
            "hash_ids": [1, 2, 3],
        },
        {
            "timestamp": 30500,
            "input_length": 1100,
            "output_length": 0,
            "hash_ids": [1, 2, 4],
        },
        {
            "timestamp": 31000,
            "input_length": 3,
            "output_length": 9,
            "hash_ids": [5],
        },
    ]
    path = write_trace(tmp_path / "m.jsonl", lines)
    found = read_mooncake_trace(path, None)
    assert [t.timestamp for t in found] == [0.0, 3.5, 4.0]
    assert [t.input_length for t in found] == [1100, 1100, 3]
    assert [t.output_length for t in found] == [5, 1, 9]
    words = [t.message.split() for t in found]
    assert [len(w) for w in words] == [1100, 1100, 3]
    assert words[0][:1024] == words[1][:1024]
    assert words[0][1024:] != words[1][1024:]
    assert words[0][:512] != words[0][512:1024]
    assert len(read_mooncake_trace(path, None, n=2)) == 2
    dummies = read_mooncake_trace(path, None, dummy=True)
    assert [t.message for t in dummies] == [""] * 3
    halved = scale_traces(found, 0.5)
    assert [t.timestamp for t in halved] == [0.0, 1.75, 2.0]
    assert halved[1].message == found[1].message


def test_qwen_traces_have_seconds_and_smaller_blocks(tmp_path):
    lines = [
        {
            "timestamp": 2.0,
            "input_length": 20,
            "output_length": 5,
            "hash_ids": [1, 2],
        },
        {
            "timestamp": 2.5,
            "input_length": 20,
            "output_length": 5,
            "hash_ids": [1, 3],
        },
    ]
    path = write_trace(tmp_path / "q.jsonl", lines)
    one, two = read_qwen_trace(path, None)
    assert (one.timestamp, two.timestamp) == (0.0, 0.5)
    assert one.message.split()[:16] == two.message.split()[:16]
    assert one.message.split()[16:] != two.message.split()[16:]
    tokenizer = load_tokenizer(str(model_path("qwen3-tiny")))
    exact = read_qwen_trace(path, tokenizer)
    assert [
        len(tokenizer(t.message).input_ids) for t in exact
    ] == pytest.approx([20, 20], abs=2)


def test_a_line_that_is_no_request_is_named(tmp_path):
    for broken in (
        {"timestamp": 1},
        [1],
        {"timestamp": "x", "input_length": 1},
    ):
        path = write_trace(tmp_path / "b.jsonl", [broken])
        with pytest.raises(ValueError, match=r"b\.jsonl:1"):
            read_mooncake_trace(path, None)
    good = {"timestamp": 1, "input_length": 1, "output_length": 1}
    (tmp_path / "b.jsonl").write_text(f"{json.dumps(good)}\n{{\n")
    with pytest.raises(ValueError, match=r"b\.jsonl:2"):
        read_qwen_trace(str(tmp_path / "b.jsonl"), None)


def test_a_row_is_made_of_the_times():
    said: list[str] = []
    report = new_report("url", model="m")
    results = [
        RawResult(1, 4, "", [10.0, 10.1, 10.2, 10.4]),
        RawResult(1, 6, "", [11.0, 11.3]),
        RawResult(1, 0, "", [10.0]),
    ]
    done = add_row(report, "4.00/s", results, said.append)
    assert done == pytest.approx(2 / 1.3)
    [row] = report.rows
    assert list(row) == report.columns
    assert row["load"] == "4.00/s"
    assert row["requests/s"] == done
    assert row["tokens/s"] == pytest.approx(10 / 1.3)
    assert row["first p50 ms"] == pytest.approx(200)
    assert row["first p99 ms"] == pytest.approx(298)
    assert row["gap p50 ms"] == pytest.approx(150)
    assert row["gap p90 ms"] == pytest.approx(190)
    with pytest.raises(ValueError, match="no answer"):
        add_row(report, "x", results[2:], said.append)
    add_row(report, "one piece", results[1:2], said.append)
    assert "gap p50 ms" not in report.rows[1]


def target(server: FakeServer, **more) -> Target:
    return Target(server.client(), "fake", WORK, **more)


def test_runs_have_the_same_lengths_and_other_prompts():
    one = target(FakeServer())
    first, second = one.messages(1), one.messages(2)
    assert first == one.messages(1)
    assert [t.output_length for t in first] == [t.output_length for t in second]
    assert {t.message for t in first}.isdisjoint(t.message for t in second)
    assert [len(t.message.split()) for t in first] == [
        t.input_length for t in first
    ]
    assert all(3 <= t.output_length <= 8 for t in first)
    one.work = Workload(6, 3, 8, shared=5)
    starts = {" ".join(t.message.split()[:5]) for t in one.messages(1)}
    assert len(starts) == 1
    assert one.messages(1)[0].input_length == first[0].input_length + 5


@pytest.mark.parametrize("users", [1, 2, 9])
def test_no_more_users_than_wanted(users):
    server = FakeServer()

    async def run() -> list[RawResult]:
        mine = target(server)
        return await mine.concurrent(mine.messages(1), users)

    results = asyncio.run(run())
    assert server.most == min(users, WORK.requests)
    wanted = {t.message for t in target(FakeServer()).messages(1)}
    assert {r.message for r in results} == wanted
    assert len(results) == WORK.requests


def test_no_run_has_prompts_of_another_one():
    server, said = FakeServer(), []
    plan = Plan([Rate.parse("inf"), Rate.parse("200%")], [2, 3])

    async def run() -> Report:
        async with server.client() as client:
            return await measure_online(client, WORK, plan, None, said.append)

    report = asyncio.run(run())
    assert [row["load"].split()[-1] for row in report.rows] == [
        "once",
        "(200%)",
        "users",
        "users",
    ]
    assert report.setup["model"] == "fake" and len(said) == 4
    prompts = [body["messages"][0]["content"] for body in server.bodies]
    assert len(prompts) == len(set(prompts)) == 4 + 4 * WORK.requests


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("wanted", [True, False])
def test_how_far_it_is_is_drawn_on_stderr(monkeypatch, wanted):
    shown = Terminal()
    monkeypatch.setattr("sys.stderr", shown)
    monkeypatch.setenv("TERM", "xterm")
    mine = target(FakeServer())
    traces = mine.messages(1)[:2]
    asyncio.run(benchmark_trace(mine.client, traces, "fake", pbar=wanted))
    assert ("Answers" in shown.getvalue()) is wanted


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    place = tmp_path_factory.mktemp("online")
    with Live(place, model_under_test("qwen3-tiny")) as server:
        server.wait_ready()
        yield server


@pytest.mark.parity
def test_a_real_server_under_every_kind_of_load(live, tmp_path):
    lines = [
        {
            "timestamp": 100 * i,
            "input_length": 4,
            "output_length": 3,
            "hash_ids": [i],
        }
        for i in range(3)
    ]
    trace = write_trace(tmp_path / "t.jsonl", lines)
    url, path = f"http://127.0.0.1:{live.port}/v1", tmp_path / "o.json"
    words = ["online", "--url", url, "--workload", "cpu", "--requests", "5"]
    words += ["--shortest", "3", "--longest", "8", "--rate", "inf"]
    words += ["--rate", "50%", "--rate", "20", "--users", "2"]
    words += [
        "--trace",
        trace,
        "--tokenizer",
        str(model_under_test("qwen3-tiny")),
    ]
    done = CliRunner().invoke(app, [*words, "--out", str(path)])
    assert done.exit_code == 0, done.output
    found = json.loads(path.read_text())
    loads = [row["load"] for row in found["rows"]]
    assert loads[0] == "all at once" and loads[1].endswith("/s (50%)")
    assert loads[2:] == ["20.00/s", "2 users", "t.jsonl"]
    half = float(loads[1].partition("/")[0])
    assert half == pytest.approx(found["rows"][0]["requests/s"] / 2, abs=0.01)
    for row in found["rows"]:
        assert (
            0
            < row["first p50 ms"]
            <= row["first p90 ms"]
            <= row["first p99 ms"]
        )
    # What it answers is still what transformers does.
    folder = model_under_test("qwen3-tiny")
    [ids, *_] = prompts(folder)
    body = {"prompt": ids, "max_tokens": 12, "temperature": 0}
    status, made = live.post("/v1/completions", body | {"ignore_eos": True})
    text = load_tokenizer(str(folder)).decode(
        reference(folder, ids, 12).ids, skip_special_tokens=True
    )
    assert (status, made["choices"][0]["text"]) == (200, text)


def test_one_real_request_is_counted_by_the_server(live):
    async def ask_it() -> RawResult:
        async with OpenAI(
            base_url=f"http://127.0.0.1:{live.port}/v1", api_key="none"
        ) as client:
            name = await get_model_name(client)
            return await benchmark_one(client, "Why?", 12, name)

    result = asyncio.run(ask_it())
    assert result.output_len == 12 and result.input_len > 4
    assert 2 <= len(result.tics) <= 13


def test_what_a_plan_cannot_do_is_said_before_anything_is_asked(tmp_path):
    for rates in (["80%"], ["4", "80%", "inf"]):
        with pytest.raises(ValueError, match="inf"):
            Plan([Rate.parse(text) for text in rates], [])
    with pytest.raises(ValueError, match="mooncake, qwen"):
        Plan([], [], tmp_path / "x", "azure")
    with pytest.raises(ValueError, match="name a --rate"):
        Plan([], [])
    all_at_once = [Rate.parse("inf")]
    url = "http://127.0.0.1:9/v1"
    with pytest.raises(ValueError, match=r"127\.0\.0\.1:9/v1: Cannot connect"):
        run_online(url, "none", WORK, Plan(all_at_once, []), None, print)


def test_a_trace_that_cannot_be_read_costs_no_runs(tmp_path):
    (tmp_path / "empty").touch()
    for name, error in (("gone", FileNotFoundError), ("empty", ValueError)):
        server = FakeServer()
        plan = Plan([Rate.parse("inf")], [], tmp_path / name)

        async def run(server=server, plan=plan) -> None:
            async with server.client() as client:
                await measure_online(client, WORK, plan, None, print)

        with pytest.raises(error, match=name):
            asyncio.run(run())
        assert server.bodies == []


def lines_of(*parts, error=None):
    async def received():
        for part in parts:
            yield part
        if error is not None:
            raise error

    async def collect():
        return [line async for line in _lines(received())]

    return asyncio.run(collect())


def test_lines_are_cut_wherever_they_are_torn():
    text = 'data: {"a": "\u2028é"}\r\n\r\n: ping\ndata: {"b": 1}'.encode()
    expected = text.split(b"\n")
    for size in range(1, len(text) + 1):
        parts = [text[i : i + size] for i in range(0, len(text), size)]
        assert lines_of(*parts) == expected
    assert json.loads(expected[0][6:]) == {"a": "\u2028é"}


def test_an_answer_that_breaks_off_is_an_error_of_the_client():
    error = httpx2.ReadError("the peer is gone")
    with pytest.raises(
        openai.OpenAIError, match=r"broke off.*the peer is gone"
    ):
        lines_of(b"data: 1\n", error=error)
