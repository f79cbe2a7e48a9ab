"""A real server as its users meet it: OpenAI's client, curl, a fuzzer, the cases."""

import asyncio
import json
import re
import shlex
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import openai
import pytest

import minisgl
from tests.live import Live, wait_until
from tests.parity import (
    Reference,
    model_under_test,
    prompts,
    reference,
)
from tools.models import model_path

ROOT = Path(minisgl.__file__).resolve().parents[1]
CONTEXT = 256
PAGES = 1024
GREEDY = {"temperature": 0, "extra_body": {"ignore_eos": True}}
QUESTION = [{"role": "user", "content": "Why is the sky blue?"}]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("live")
    options = [
        "--max-seq-len-override",
        str(CONTEXT),
        "--num-pages",
        str(PAGES),
    ]
    with Live(folder, model_under_test("qwen3-tiny"), *options) as live:
        live.wait_ready()
        live.url = f"http://127.0.0.1:{live.port}"
        yield live


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as found:
        yield found


@pytest.fixture(scope="module")
def model(client) -> str:
    return client.models.list().data[0].id


@pytest.fixture(scope="module")
def tokenizer():
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model_under_test("qwen3-tiny"))


def numbers(server) -> dict[str, int]:
    with server.open("/health") as answer:
        return json.loads(answer.read())["numbers"]


def assert_clean(server) -> dict[str, int]:
    """Nothing runs or waits, and every page is free or cached."""
    wait_until(lambda: numbers(server)["running"] == 0, 2, "an idle engine")
    found = numbers(server)
    assert found["waiting"] == 0
    assert found["free_pages"] + found["cached_pages"] == found["total_pages"]
    return found


def chat_ids(tokenizer, messages) -> list[int]:
    chat = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, tokenize=False
    )
    return tokenizer(chat, add_special_tokens=False).input_ids


def text_of(tokenizer, found: Reference) -> str:
    return tokenizer.decode(found.ids, skip_special_tokens=True)


def expected(tokenizer, ids: list[int], count: int) -> str:
    """What transformers answers, as text."""
    folder = model_under_test("qwen3-tiny")
    return text_of(tokenizer, reference(folder, ids, count))


@pytest.mark.parity
def test_completions_of_ids_are_those_of_transformers(client, model, tokenizer):
    asked = prompts(model_under_test("qwen3-tiny"))
    made = client.completions.create(
        model=model, prompt=asked, max_tokens=24, **GREEDY
    )
    assert len(made.choices) == len(asked)
    for choice, ids in zip(made.choices, asked, strict=True):
        assert choice.text == expected(tokenizer, ids, 24)
        assert choice.finish_reason == "length"
    assert made.usage.prompt_tokens == sum(map(len, asked))
    assert made.usage.completion_tokens == 24 * len(asked)


@pytest.mark.parity
def test_a_chat_is_that_of_transformers(client, model, tokenizer):
    made = client.chat.completions.create(
        model=model, messages=QUESTION, max_completion_tokens=24, **GREEDY
    )
    ids = chat_ids(tokenizer, QUESTION)
    assert made.choices[0].message.content == expected(tokenizer, ids, 24)
    assert made.choices[0].message.role == "assistant"
    assert made.usage.prompt_tokens == len(ids)
    again = client.chat.completions.create(
        model=model, messages=QUESTION, max_completion_tokens=24, **GREEDY
    )
    assert again.choices[0].message == made.choices[0].message
    cached = again.usage.prompt_tokens_details.cached_tokens
    assert 0 < cached < len(ids)


@pytest.mark.parity
def test_c09_streams_joined_are_the_whole_text(client, model, tokenizer):
    def ask(text: str, count: int) -> str:
        fields = {
            "model": model,
            "prompt": text,
            "max_tokens": count,
            **GREEDY,
        }
        whole = client.completions.create(**fields).choices[0].text
        stream = client.completions.create(stream=True, **fields)
        assert "".join(c.choices[0].text for c in stream) == whole
        return whole

    texts = ("Once upon a time", "🎉🎉 party", "日本語の文章")
    cases = [(text, count) for text in texts for count in range(1, 41, 3)]
    with ThreadPoolExecutor(8) as pool:
        found = [*pool.map(ask, *zip(*cases, strict=True))]
    for (text, count), whole in zip(cases, found, strict=True):
        ids = tokenizer(text).input_ids
        assert whole == expected(tokenizer, ids, count)


def test_streams_of_the_official_client(client, model):
    stream = client.chat.completions.create(
        model=model,
        messages=QUESTION,
        max_tokens=5,
        stream=True,
        stream_options={"include_usage": True},
        **GREEDY,
    )
    *chunks, last = stream
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices[0].finish_reason == "length"
    assert last.choices == [] and last.usage.completion_tokens == 5
    assert len({chunk.id for chunk in chunks}) == 1


def test_the_helper_for_streams_of_the_official_client(client, model):
    fields = {"model": model, "messages": QUESTION, "max_tokens": 12, **GREEDY}
    whole = client.chat.completions.create(**fields)
    with client.chat.completions.stream(**fields) as stream:
        parts = [e.delta for e in stream if e.type == "content.delta"]
    assert "".join(parts) == whole.choices[0].message.content


def test_the_asynchronous_client_with_many_at_once(server, model, client):
    async def ask(async_client, i: int) -> str:
        fields = {
            "model": model,
            "prompt": f"number {i}",
            "max_tokens": 8,
            **GREEDY,
        }
        if i % 2:
            made = await async_client.completions.create(**fields)
            return made.choices[0].text
        stream = await async_client.completions.create(stream=True, **fields)
        return "".join([chunk.choices[0].text async for chunk in stream])

    async def main() -> list[str]:
        url = f"{server.url}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="none") as found:
            return await asyncio.gather(*(ask(found, i) for i in range(32)))

    asked = [f"number {i}" for i in range(32)]
    fields = {"model": model, "prompt": asked, "max_tokens": 8, **GREEDY}
    made = client.completions.create(**fields)
    assert asyncio.run(main()) == [choice.text for choice in made.choices]
    assert_clean(server)


def test_c22_models_of_the_official_client(client, model):
    assert client.models.retrieve(model).id == model
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="gpt-4", messages=QUESTION)
    assert caught.value.code == "model_not_found"
    assert caught.value.param == "model"


def test_errors_are_those_of_the_official_client(client, model, server):
    for stream in (False, True):
        for fields, param in (
            ({"temperature": -1}, "temperature"),
            ({"max_tokens": 0}, "max_tokens"),
            ({"extra_body": {"tools": {}}}, "tools"),
        ):
            with pytest.raises(openai.BadRequestError) as caught:
                client.chat.completions.create(
                    model=model, messages=QUESTION, stream=stream, **fields
                )
            assert caught.value.param == param
        for prompt, said in (
            ("a b c d e f g h " * CONTEXT, f"the context holds {CONTEXT}"),
            ("", "the prompt is empty"),
            ([2**31 - 1], "not in the vocabulary"),
        ):
            with pytest.raises(openai.BadRequestError, match=said):
                client.completions.create(
                    model=model, prompt=prompt, stream=stream
                )
        for extra in (
            {"logit_bias": {"9999999": 1}},
            {"stop_token_ids": [9999999]},
        ):
            with pytest.raises(openai.BadRequestError, match="vocabulary"):
                client.completions.create(
                    model=model, prompt="a", stream=stream, extra_body=extra
                )
    assert_clean(server)


@pytest.mark.parity
def test_c11_ends(client, model):
    ids = prompts(model_under_test("qwen3-tiny"))[4]
    found = reference(model_under_test("qwen3-tiny"), ids, 24).ids
    # An end token for this request alone: the first that had not occurred before.
    at = next(i for i in range(5, 24) if found[i] not in found[:i])
    extra = {"ignore_eos": True, "stop_token_ids": [found[at]]}
    for limit, reason in (
        (1, "length"),
        (at, "length"),
        (at + 1, "stop"),
        (at + 6, "stop"),
    ):
        fields = {"model": model, "prompt": ids, "temperature": 0}
        fields |= {"max_tokens": limit, "extra_body": extra}
        made = client.completions.create(**fields)
        assert made.choices[0].finish_reason == reason
        count = min(limit, at + 1)
        assert made.usage.completion_tokens == count
        stream = client.completions.create(
            stream=True, stream_options={"include_usage": True}, **fields
        )
        *_, end, last = stream
        assert end.choices[0].finish_reason == reason
        assert last.usage.completion_tokens == count


def test_c12_edges_of_sampling(client, model):
    def ask(**fields) -> str:
        extra = {"ignore_eos": True} | fields.pop("extra_body", {})
        made = client.completions.create(
            model=model,
            prompt="Edges",
            max_tokens=12,
            extra_body=extra,
            **fields,
        )
        return made.choices[0].text

    greedy = ask(temperature=0)
    assert ask(temperature=1, extra_body={"top_k": 1}) == greedy
    assert ask(temperature=1, top_p=1e-9) == greedy
    assert ask(temperature=5e-324) == greedy
    assert ask(temperature=1, extra_body={"min_p": 1}) == greedy
    free = ask(temperature=1, seed=7)
    for top_k in (-1, 0, 49152, 9_999_999):
        assert ask(temperature=1, seed=7, extra_body={"top_k": top_k}) == free
    assert ask(temperature=1, seed=7, top_p=1) == free
    for bad in ({"top_p": 0}, {"top_p": 1.5}, {"temperature": -1}):
        with pytest.raises(openai.BadRequestError):
            ask(**bad)
        assert ask(temperature=0) == greedy
    for bad in ({"top_k": 0.5}, {"top_k": "5"}, {"min_p": 2}):
        with pytest.raises(openai.BadRequestError):
            ask(extra_body=bad)
        assert ask(temperature=0) == greedy


def test_c13_seeds(server, client, model):
    def ask(seed: int | None, prompt: str = "Draw") -> str:
        made = client.completions.create(
            model=model,
            prompt=prompt,
            max_tokens=20,
            seed=seed,
            temperature=1,
            extra_body={"ignore_eos": True},
        )
        return made.choices[0].text

    alone = ask(42)
    assert ask(42) == alone
    streams = [server.stream(200) for _ in range(6)]
    assert ask(42) == alone
    for stream in streams:
        stream.close()
    others = ("Draw", "Toss", "Throw")
    assert any(ask(42, prompt) != ask(43, prompt) for prompt in others)
    made = client.completions.create(
        model=model,
        prompt="Draw",
        max_tokens=20,
        seed=41,
        temperature=1,
        n=2,
        extra_body={"ignore_eos": True},
    )
    assert made.choices[1].text == alone


def test_c16_n_penalties_and_bias(client, model, tokenizer):
    made = client.chat.completions.create(
        model=model,
        messages=[
            {"role": "user", "content": "A prompt nobody has sent before"}
        ],
        n=3,
        temperature=1,
        max_tokens=6,
        extra_body={"ignore_eos": True},
    )
    assert [choice.index for choice in made.choices] == [0, 1, 2]
    assert made.usage.completion_tokens == 18
    ids = chat_ids(
        tokenizer,
        [{"role": "user", "content": "A prompt nobody has sent before"}],
    )
    assert made.usage.prompt_tokens == len(ids)
    forced = client.completions.create(
        model=model,
        prompt="x",
        max_tokens=4,
        logit_bias={"70": 100},
        **GREEDY,
    )
    assert forced.choices[0].text == tokenizer.decode([70] * 4)
    torn = client.completions.create(
        model=model,
        prompt="x",
        max_tokens=8,
        logit_bias={str(i): 100 for i in range(70, 80)},
        frequency_penalty=2,
        presence_penalty=2,
        logprobs=0,
        **GREEDY,
    )
    assert len(set(torn.choices[0].logprobs.tokens)) > 1


def test_c16_stop_strings_in_real_text(client, model):
    fields = {"model": model, "prompt": "Stop", "max_tokens": 40, **GREEDY}
    whole = client.completions.create(**fields).choices[0].text
    middle = len(whole) // 2
    for width in (1, 2, 5):
        stop = whole[middle : middle + width]
        cut = client.completions.create(stop=[stop], **fields)
        assert cut.choices[0].text == whole[: whole.index(stop)]
        assert cut.choices[0].finish_reason == "stop"
        stream = client.completions.create(stop=stop, stream=True, **fields)
        assert "".join(c.choices[0].text for c in stream) == cut.choices[0].text


@pytest.mark.parity
def test_c17_logprobs_are_those_of_transformers(client, model, tokenizer):
    import torch
    from transformers import AutoModelForCausalLM

    ids = chat_ids(tokenizer, QUESTION)
    fields = {"model": model, "messages": QUESTION, "max_tokens": 12, **GREEDY}
    # What changes the choice does not change what is reported.
    fields["extra_body"] = {"ignore_eos": True, "repetition_penalty": 1.1}
    fields |= {"logprobs": True, "top_logprobs": 3, "temperature": 0}
    made = client.chat.completions.create(**fields)
    content = made.choices[0].logprobs.content
    assert len(content) == 12
    joined = bytes(b for entry in content for b in entry.bytes)
    assert joined.decode("utf-8", "replace") == made.choices[0].message.content
    folder = model_under_test("qwen3-tiny")
    net = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    seen = list(ids)
    for entry in content:
        with torch.inference_mode():
            logits = net(torch.tensor([seen])).logits[0, -1]
        logprobs = logits.log_softmax(-1)
        best = logprobs.topk(3)
        for top, value in zip(entry.top_logprobs, best.values, strict=True):
            assert abs(top.logprob - value.item()) < 1e-4
        # The token by its logprob: texts of tokens may be alike.
        chosen = (logprobs - entry.logprob).abs().argmin().item()
        assert abs(logprobs[chosen].item() - entry.logprob) < 1e-4
        seen.append(chosen)
    stream = client.chat.completions.create(stream=True, **fields)
    streamed = [
        entry
        for chunk in stream
        if chunk.choices[0].logprobs
        for entry in chunk.choices[0].logprobs.content
    ]
    # A cached prompt is computed in other pieces, so the last digits differ.
    for one, other in zip(streamed, content, strict=True):
        assert one.token == other.token and one.bytes == other.bytes
        assert abs(one.logprob - other.logprob) < 1e-4


def test_c19_as_much_as_fits(client, model, tokenizer):
    prompt = "Go on " * 20
    ids = tokenizer(prompt).input_ids
    fields = {
        "model": model,
        "temperature": 0,
        "extra_body": {"ignore_eos": True},
    }
    made = client.completions.create(
        prompt=prompt, max_tokens=100_000, **fields
    )
    assert made.usage.completion_tokens == CONTEXT - len(ids)
    assert made.choices[0].finish_reason == "length"
    made = client.chat.completions.create(messages=QUESTION, **fields)
    count = CONTEXT - len(chat_ids(tokenizer, QUESTION))
    assert made.usage.completion_tokens == count


@pytest.mark.parity
def test_c20_parts_are_one_text(client, model):
    fields = {"model": model, "max_tokens": 8, **GREEDY}
    parts = [{"type": "text", "text": "Say hi"}]
    asked = [
        [{"role": "user", "content": content}] for content in (parts, "Say hi")
    ]
    one, other = (
        client.chat.completions.create(messages=m, **fields) for m in asked
    )
    assert one.choices[0].message == other.choices[0].message
    assert one.usage.prompt_tokens == other.usage.prompt_tokens


def test_c23_probes_leave_no_trace_in_the_scheduler(server):
    stream = server.stream(200)
    for _ in range(100):
        assert numbers(server)["running"] <= 1
    stream.close()
    assert_clean(server)


def leave_after(server, path: str, body: dict, events: int) -> None:
    """Ask, read so many events, and go."""
    with httpx2.Client(base_url=server.url, timeout=20) as client:
        request = client.build_request("POST", path, json=body)
        if events:
            response = client.send(request, stream=True)
            lines = response.iter_lines()
            for _ in range(2 * events):
                next(lines)
            response.close()
            return
        with pytest.raises(httpx2.ReadTimeout):
            client.send(request, timeout=httpx2.Timeout(0.05))  # type: ignore


def test_c24_whoever_leaves_is_forgotten(server, client, model):
    before = assert_clean(server)
    body = {
        "prompt": "x",
        "max_tokens": 200,
        "ignore_eos": True,
        "model": model,
    }
    leave_after(server, "/v1/completions", body | {"stream": True}, 3)
    crowd = {**body, "prompt": ["y"] * 40, "n": 3}
    with httpx2.Client(base_url=server.url) as leaving:
        for stream in (True, False):
            with pytest.raises(httpx2.TimeoutException):
                leaving.post(
                    "/v1/completions",
                    json=crowd | {"stream": stream},
                    timeout=0.15,
                )
    begin = time.monotonic()
    after = assert_clean(server)
    assert time.monotonic() - begin < 2
    assert after["aborted"] > before["aborted"]
    fields = {"model": model, "prompt": "after all", "max_tokens": 8, **GREEDY}
    one = client.completions.create(**fields)
    assert client.completions.create(**fields).choices == one.choices


CURL = re.compile(r"^(?:\$ )?(curl .*?)(?<!\\)$", re.M | re.S)


def curl_commands() -> list[str]:
    """The curl commands of README and page, lines joined."""
    pages = [ROOT / "README.md", *ROOT.glob("docs/en/ch15-*.md")]
    blocks = re.findall(
        r"```(?:bash|console)\n(.*?)```",
        "".join(page.read_text(encoding="utf-8") for page in pages),
        re.S,
    )
    found = [c for block in blocks for c in CURL.findall(block)]
    return [command.replace("\\\n", " ") for command in found]


def test_the_curl_commands_of_readme_and_page_work(server):
    if not (ROOT / "README.md").is_file():
        pytest.skip("a chapter's own tree has no README.md")
    commands = curl_commands()
    assert commands, "README.md and the page of the chapter show no curl"
    for command in commands:
        moved = re.sub(r"(localhost|127\.0\.0\.1):\d+", server.url[7:], command)
        words = [*shlex.split(moved), "--silent", "--show-error", "--fail"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, (command, done.stderr)
        assert done.stdout.strip(), command


def test_schemathesis_finds_nothing(tmp_path):
    """Whatever fits the schema or just does not: no 5xx, and answers as described.

    Left out is the check that all that fits is taken: a schema cannot say what is
    in the vocabulary, or that a stream's options need a stream. Most of the requests
    want as many tokens as fit; here the context is short, and half of the
    vocabulary ends an answer.
    """
    command = [sys.executable, "-m", "schemathesis.cli", "run", "--no-color"]
    command += [
        "--max-examples",
        "5",
        "--seed",
        "15",
        "--request-timeout",
        "60",
    ]
    command += ["--exclude-checks", "positive_data_acceptance"]
    folder = tmp_path / "model"
    shutil.copytree(model_path("qwen3-tiny"), folder)
    ends = {"eos_token_id": [*range(0, 512, 2)]}
    (folder / "generation_config.json").write_text(json.dumps(ends))
    with Live(tmp_path, folder, "--max-seq-len-override", "24") as live:
        schema = f"http://127.0.0.1:{live.wait_ready().port}/openapi.json"
        done = subprocess.run(
            [*command, schema], capture_output=True, text=True, cwd=tmp_path
        )
        assert done.returncode == 0, done.stdout[-6000:]
        assert_clean(live)
    ran = re.search(r"(\d+) generated, (\d+) passed", done.stdout)
    assert ran and ran[1] == ran[2], done.stdout[-2000:]
    assert int(ran[1]) >= 500


@pytest.mark.parity
@pytest.mark.parametrize(
    "requests", [200, pytest.param(2000, marks=pytest.mark.slow)]
)
def test_many_clients_of_which_some_leave(server, requests):
    from tools.load_test import Load, run_load

    folder = Path(model_under_test("qwen3-tiny"))
    load = Load(server.url, folder, tuple(server.pids()), requests)
    report = run_load(load)
    report.check()
    assert_clean(server)
    assert report.answered + report.left == requests
    assert report.left > requests / 50


def test_the_load_test_can_fail():
    from tools.load_test import MB, Report

    sizes = [{5: int(10 * MB)}] * 3
    good = {"answered": 10, "left": 2, "memory": sizes}
    Report(**good).check()
    grown = [*sizes[:2], {5: int(30 * MB)}]
    for bad, said in (
        ({"wrong": ["x"]}, "1 wrong: x"),
        ({"failed": ["x"]}, "1 failed: x"),
        ({"died": [5]}, "died"),
        ({"memory": grown}, "has grown from 10 to 30 MB"),
        ({"answered": 0}, "nothing"),
    ):
        with pytest.raises(AssertionError, match=said):
            Report(**good | bad).check()
