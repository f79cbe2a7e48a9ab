"""Metrics and request log of a real server, and answers that stay the same."""

import json
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from minisgl.utils import load_tokenizer
from tests.live import GREEDY, Live
from tests.parity import model_under_test, prompts, reference
from tests.samples import BETWEEN_COUNT, FIRST_COUNT, ends, read

FOLDER = model_under_test("qwen3-tiny")


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    place = tmp_path_factory.mktemp("metrics")
    with Live(
        place, FOLDER, "--log-requests", "--num-tokenizer", "1"
    ) as server:
        yield server.wait_ready()


def scrape(live) -> dict[str, float]:
    with live.open("/metrics") as answer:
        assert answer.status == 200
        return read(answer.read().decode())


def idle_again(live) -> None:
    name = "minisgl_requests_running"
    until = time.monotonic() + 5
    while scrape(live)[name]:
        assert time.monotonic() < until, live.said
        time.sleep(0.02)


def complete(live, **body) -> dict:
    status, made = live.post("/v1/completions", body | GREEDY)
    assert status == 200, live.said
    return made


def logged(live) -> list[dict]:
    found = live.out.read_text().splitlines()
    return [json.loads(line) for line in found if line.startswith("{")]


@pytest.mark.parity
def test_answers_are_those_of_transformers_while_somebody_scrapes(live):
    tokenizer, asked = load_tokenizer(str(FOLDER)), prompts(FOLDER)

    def ask(ids: list[int]) -> str:
        made = complete(live, prompt=ids, max_tokens=24)
        scrape(live)
        return made["choices"][0]["text"]

    before = scrape(live)
    with ThreadPoolExecutor(4) as pool:
        texts = list(pool.map(ask, asked))
    for ids, text in zip(asked, texts, strict=True):
        expected = reference(FOLDER, ids, 24).ids
        assert text == tokenizer.decode(expected, skip_special_tokens=True)
    after = scrape(live)
    grown = {name: after[name] - before.get(name, 0) for name in after}
    assert grown["minisgl_prompt_tokens_total"] == sum(map(len, asked))
    assert grown["minisgl_generated_tokens_total"] == 24 * len(asked)
    assert grown[FIRST_COUNT] == len(asked)
    assert grown[BETWEEN_COUNT] == 23 * len(asked)
    assert grown["minisgl_requests_total{reason=length}"] == len(asked)
    assert len(logged(live)) == len(asked)


def test_the_log_says_what_the_client_is_told(live):
    before, prompt = len(logged(live)), [7, 8, 9] * 20
    used = [
        complete(live, prompt=prompt, max_tokens=5)["usage"] for _ in range(2)
    ]
    found = logged(live)[before:]
    for one, usage in zip(found, used, strict=True):
        assert one["prompt_tokens"] == usage["prompt_tokens"] == 60
        assert one["completion_tokens"] == usage["completion_tokens"] == 5
        details = usage["prompt_tokens_details"]
        assert one["cached_tokens"] == details["cached_tokens"]
        assert one["finish_reason"] == "length"
        assert set(one).isdisjoint({"prompt", "text"})
    assert found[1]["cached_tokens"] > found[0]["cached_tokens"]


def test_pages_and_requests_are_the_schedulers(live):
    before = ends(scrape(live)).get("abort", 0)
    idle_again(live)
    with live.stream(max_tokens=1500):
        busy = scrape(live)
        assert busy["minisgl_requests_running"] == 1
        assert busy["minisgl_requests_waiting"] == 0
        assert busy["minisgl_kv_pages{state=used}"] > 0
    idle_again(live)
    idle = scrape(live)
    assert idle["minisgl_kv_pages{state=used}"] == 0
    assert idle["minisgl_kv_pages{state=cached}"] > 0
    states = ("used", "cached", "free")
    pages = [idle[f"minisgl_kv_pages{{state={state}}}"] for state in states]
    with live.open("/health") as answer:
        numbers = json.loads(answer.read())["numbers"]
    assert sum(pages) == numbers["total_pages"]
    assert pages[2] == numbers["free_pages"]
    assert ends(idle)["abort"] == before + 1
    assert logged(live)[-1]["finish_reason"] == "abort"


def test_without_the_option_nothing_is_printed(tmp_path):
    with Live(tmp_path, FOLDER) as server:
        server.wait_ready()
        complete(server, prompt="Hi")
        assert logged(server) == []
        assert ends(scrape(server)) == {"length": 1}
