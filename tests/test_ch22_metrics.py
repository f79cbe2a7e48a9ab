"""What is counted and logged of every kind of end, with a scripted engine."""

import asyncio
import io
import json
import math
import time

import httpx2
import pytest

from minisgl.message import UserReply
from minisgl.sampling_params import SamplingParams
from minisgl.server.metrics import BETWEEN, FIRST, Histogram, Metrics
from minisgl.server.observer import MeteredGeneration, Observer
from minisgl.server.request_log import Record, RequestLog
from tests.fakes.back_end import NUMBERS, Script, events, served
from tests.fakes.frontend import Frontend
from tests.samples import BETWEEN_COUNT, FIRST_COUNT, Numbers, ends, read


def scrape(server) -> Numbers:
    response = server.client.get("/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain")
    return read(response.text)


@pytest.fixture
def server():
    with served() as running:
        yield running


def test_a_histogram_counts_all_that_is_not_above_a_bound():
    histogram = Histogram((0.5, 1, 2))
    for value in (0.1, 0.5, 0.6, 2.0, 2.1, 99.0):
        histogram.add(value)
    family = histogram.family("x_seconds", "text")
    samples = {(s.name, s.labels.get("le")): s.value for s in family.samples}
    assert samples == {
        ("x_seconds_bucket", "0.5"): 2,
        ("x_seconds_bucket", "1"): 3,
        ("x_seconds_bucket", "2"): 4,
        ("x_seconds_bucket", "+Inf"): 6,
        ("x_seconds_count", None): 6,
        ("x_seconds_sum", None): pytest.approx(104.3),
    }


def test_bounds_go_from_milliseconds_to_what_nobody_waits_for():
    first = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60]
    between = [0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1]
    assert list(FIRST) == first and list(BETWEEN) == between
    found = read(Metrics().show(None).decode())
    assert "minisgl_time_to_first_token_seconds_bucket{le=60}" in found
    assert "minisgl_time_to_first_token_seconds_bucket{le=+Inf}" in found


def test_the_text_before_anything_has_happened():
    found = read(Metrics().show(None).decode())
    assert found["minisgl_prompt_tokens_total"] == 0
    assert found["minisgl_cache_hit_rate"] == 0
    assert found["minisgl_scheduler_up"] == 0
    assert found[FIRST_COUNT] == found[BETWEEN_COUNT] == 0
    assert not any("kv_pages" in name for name in found)
    assert not any(math.isnan(value) for value in found.values())


def test_the_schedulers_numbers():
    metrics = Metrics()
    found = read(metrics.show(NUMBERS).decode())
    assert found["minisgl_scheduler_up"] == 1
    assert found["minisgl_requests_running"] == 1
    assert found["minisgl_requests_waiting"] == 2
    assert found["minisgl_kv_pages{state=free}"] == 3
    assert found["minisgl_kv_pages{state=cached}"] == 4
    assert found["minisgl_kv_pages{state=used}"] == 5
    # Old numbers are not shown again once the scheduler says nothing.
    assert "minisgl_requests_running" not in read(metrics.show(None).decode())


def test_tokens_hits_and_times_of_two_answers(server):
    for _ in range(2):
        response = server.chat("a b c d", max_tokens=3)
        assert response.json()["usage"]["completion_tokens"] == 3
    found = scrape(server)
    assert found["minisgl_prompt_tokens_total"] == 8
    assert found["minisgl_cached_tokens_total"] == 3
    assert found["minisgl_cache_hit_rate"] == 3 / 8
    assert found["minisgl_generated_tokens_total"] == 6
    assert found[FIRST_COUNT] == 2 and found[BETWEEN_COUNT] == 4
    assert ends(found) == {"length": 2}


def test_times_are_those_of_the_tokens(server):
    server.engine.scripts["slow"] = Script([" a", " b"], pace=0.06)
    server.chat("slow")
    found = scrape(server)
    first = found["minisgl_time_to_first_token_seconds_sum"]
    between = found["minisgl_inter_token_latency_seconds_sum"]
    # Two tokens and an end token, each 60 ms after the one before it left;
    # one that is read late seems nearer to the next.
    assert first >= 0.06 and between > 0 and first + between >= 0.17
    assert found["minisgl_time_to_first_token_seconds_bucket{le=0.05}"] == 0


@pytest.mark.parametrize("stream", [False, True])
def test_every_way_to_end_has_its_reason(server, stream):
    scripts = server.engine.scripts
    scripts["bad"] = Script(fail_at=0, fail="refused", error="too long")
    scripts["broken"] = Script(fail_at=2)
    server.chat(stream=stream)
    server.chat(stream=stream, max_tokens=2)
    server.chat(stream=stream, stop=["two"])
    assert server.chat("bad", stream=stream).status_code == 400
    server.chat("broken", stream=stream)
    found = scrape(server)
    assert ends(found) == {"stop": 2, "length": 1, "refused": 1, "error": 1}
    # One that was refused never had a first token.
    assert found[FIRST_COUNT] == 4
    assert found["minisgl_generated_tokens_total"] == 4 + 2 + 2 + 2


def test_answers_of_one_request_count_each(server):
    made = server.complete(["a b", "c"], n=2, max_tokens=2)
    assert len(made.json()["choices"]) == 4
    found = scrape(server)
    assert ends(found) == {"length": 4}
    assert found["minisgl_prompt_tokens_total"] == 6
    assert found["minisgl_cached_tokens_total"] == 1
    assert found["minisgl_generated_tokens_total"] == 8
    assert found[FIRST_COUNT] == 4 and found[BETWEEN_COUNT] == 4


def test_generate_is_counted_too(server):
    body = {"prompt": "a b", "max_tokens": 2}
    assert events(server.client.post("/generate", json=body))
    assert ends(scrape(server)) == {"length": 1}


@pytest.mark.parametrize("stream", [False, True])
def test_c24_a_client_that_goes_is_an_abort(server, stream):
    server.engine.scripts["long"] = Script([" x"] * 500, pace=0.01)
    body = {"prompt": "long", "stream": stream, "max_tokens": 500}
    if stream:
        with server.client.stream("POST", "/v1/completions", json=body) as some:
            assert next(some.iter_lines()).startswith("data: ")
    else:
        with pytest.raises(httpx2.TimeoutException):
            server.client.post("/v1/completions", json=body, timeout=0.3)
    assert server.engine.waits(lambda: server.engine.aborted)
    assert server.engine.waits(lambda: ends(scrape(server)))
    found = scrape(server)
    assert ends(found) == {"abort": 1}
    assert found["minisgl_generated_tokens_total"] < 100


def test_of_a_request_that_fails_in_part_the_rest_is_aborted(server):
    server.engine.scripts["broken"] = Script(fail_at=0)
    server.engine.scripts["long"] = Script([" x"] * 500, pace=0.01)
    made = server.complete(["long", "broken"], max_tokens=500)
    assert made.status_code == 500
    assert ends(scrape(server)) == {"abort": 1, "error": 1}


def test_a_scrape_asks_the_scheduler_and_does_not_need_it(server):
    probes = server.engine.probes
    assert scrape(server)["minisgl_requests_running"] == 1
    assert server.engine.probes == probes + 1
    server.chat()
    server.engine.busy = True
    found = scrape(server)
    assert found["minisgl_scheduler_up"] == 0
    assert "minisgl_requests_running" not in found
    assert ends(found) == {"stop": 1}
    server.engine.busy = False
    assert scrape(server)["minisgl_scheduler_up"] == 1


def test_an_engine_that_is_gone_is_down_and_the_counters_stay(server):
    server.chat()
    server.loop.call_soon_threadsafe(server.manager.fail_all, "it is gone")
    assert server.chat().status_code == 503
    found = scrape(server)
    assert found["minisgl_scheduler_up"] == 0
    # What could not even be asked for is no answer.
    assert ends(found) == {"stop": 1}


def test_waiting_answers_of_an_engine_that_goes_are_gone(server):
    server.engine.mute = True

    async def fail_soon() -> None:
        while not server.manager.ack_map:
            await asyncio.sleep(0.01)
        server.manager.fail_all("it is gone")

    asyncio.run_coroutine_threadsafe(fail_soon(), server.loop)
    assert server.chat().status_code == 503
    assert ends(scrape(server)) == {"gone": 1}


def test_metrics_need_no_key_and_are_not_in_the_schema():
    with served(api_key="secret") as server:
        assert server.chat().status_code == 401
        assert scrape(server)["minisgl_scheduler_up"] == 1
        schema = server.client.get("/openapi.json").json()
        assert "/metrics" not in schema["paths"]
        assert server.client.post("/metrics").status_code == 405


def lines(capfd) -> list[dict]:
    return [
        json.loads(line)
        for line in capfd.readouterr().out.splitlines()
        if line.startswith("{")
    ]


def test_a_line_for_every_answer_without_its_text(capfd):
    with served(log_requests=True) as server:
        server.chat("secret words", max_tokens=2)
        server.chat("secret words", stop=["two"])
        server.engine.scripts["bad"] = Script(fail_at=0, fail="refused")
        server.chat("bad")
    printed = capfd.readouterr().out
    found = [json.loads(line) for line in printed.splitlines()]
    assert "secret" not in printed and "one" not in printed
    assert [one["finish_reason"] for one in found] == [
        "length",
        "stop",
        "refused",
    ]
    assert len({one["id"] for one in found}) == 3
    first, second, bad = found
    assert first["prompt_tokens"] == second["prompt_tokens"] == 2
    assert (first["cached_tokens"], second["cached_tokens"]) == (0, 1)
    assert first["completion_tokens"] == second["completion_tokens"] == 2
    assert 0 < first["ttft"] < first["seconds"] < 20
    assert bad["ttft"] is None and bad["completion_tokens"] == 0
    assert bad["prompt_tokens"] == bad["cached_tokens"] == 0
    assert all(one["time"][:2] == "20" for one in found)


def test_the_text_only_if_it_is_asked_for(capfd):
    with served(log_prompts=True) as server:
        server.complete("hi there")
        server.chat("hello", max_tokens=1)
        server.complete([5, 6, 7], max_tokens=1)
    first, chat, ids = lines(capfd)
    assert first["prompt"] == "hi there"
    assert first["text"] == " one two three"
    assert chat["prompt"] == [{"role": "user", "content": "hello"}]
    assert chat["text"] == " one"
    assert ids["prompt"] == [5, 6, 7]


def test_nothing_is_printed_unless_it_is_wanted(capfd, server):
    server.chat()
    assert lines(capfd) == []


class Kept(io.StringIO):
    flushed = 0

    def flush(self) -> None:
        self.flushed += 1


def test_a_line_is_written_at_once_with_times_to_a_microsecond(monkeypatch):
    out = Kept()
    monkeypatch.setattr("sys.stdout", out)
    log = RequestLog(False)
    log.write(Record(4, 1.0, "hi", first=4 / 3, ended="stop"), 5 / 3)
    assert out.flushed == 1 and out.getvalue().endswith("}\n")
    found = json.loads(out.getvalue())
    assert (found["ttft"], found["seconds"]) == (0.333333, 0.666667)
    assert (found["id"], found["finish_reason"]) == (4, "stop")
    assert len(found) == 8 and found["time"].endswith("+00:00")


class Full(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError("no space left")


def test_a_log_that_cannot_be_written_harms_nobody(caplog, monkeypatch):
    monkeypatch.setattr("sys.stdout", Full())
    log = RequestLog(False)
    with caplog.at_level("ERROR"):
        for _ in range(3):
            log.write(Record(1, 0.0, "hi", ended="stop"), 1.0)
    assert sum("no space left" in line for line in caplog.messages) == 1


def test_an_answer_is_not_kept_unless_it_is_logged():
    reply = UserReply(1, "abc", False, completion_tokens=1)
    for log, kept in (
        (None, []),
        (RequestLog(False), []),
        (RequestLog(True), ["abc"]),
    ):
        record = Record(1, 0.0, "hi")
        Observer(log).replied(record, reply, 1.0)
        assert record.text == kept
    assert (record.first, record.last) == (1.0, 1.0)


def test_times_are_those_of_the_engine_however_slowly_a_client_reads():
    async def run():
        observer, frontend = Observer(), Frontend()
        made = MeteredGeneration(observer, frontend, ["x"], SamplingParams())
        replies = []
        for number in range(6):
            last = number == 5
            reason = "length" if last else None
            replies.append(UserReply(0, "a", last, reason, completion_tokens=1))
            time.sleep(0.02)
        await frontend.begin(made, replies)
        return [piece async for piece in made.pieces()], observer.metrics

    pieces, metrics = asyncio.run(run())
    assert len(pieces) < 6
    assert "".join(piece.text for piece in pieces) == 6 * "a"
    assert sum(metrics.between._counts) == 5
    assert 0.1 <= metrics.between._sum < 5
    assert sum(metrics.between._counts[:6]) == 0  # none is below 15 ms
