"""What the endpoints answer, with a script in the place of the engine."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import minisgl.server
from minisgl.message import TokenizeMsg
from minisgl.sampling_params import SamplingParams
from minisgl.server.completions import TextWriter
from minisgl.server.fields import MOST
from minisgl.server.generation import Piece
from minisgl.server.protocol import OpenAICompletionRequest
from minisgl.server.responses import Usage
from tests.fakes.back_end import NUMBERS, Script, events, served

ROOT = Path(minisgl.server.__file__).parents[2]


@pytest.fixture(scope="module")
def server():
    with served() as running:
        yield running


def last_params(server) -> SamplingParams:
    """What the engine was told with the newest request."""
    return server.engine.asked[max(server.engine.asked)].sampling_params


def last_text(server) -> object:
    return server.engine.asked[max(server.engine.asked)].text


def usage(prompt: int, completion: int, cached: int = 0) -> dict:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def test_c18_a_chat_is_one_json_object(server):
    for fields in ({}, {"stream": False}, {"stream": None}):
        response = server.chat("a first question", **fields)
        assert response.headers["content-type"] == "application/json"
        body = response.json()
        assert body["id"].startswith("chatcmpl-") and body["model"] == "tiny"
        assert body["object"] == "chat.completion"
        assert isinstance(body["created"], int)
        assert body["choices"] == [
            {
                "index": 0,
                "message": {"role": "assistant", "content": " one two three"},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ]
    assert body["usage"] == usage(3, 4, cached=2)


def test_c18_a_chat_streams_chunks(server):
    found = events(server.chat("hi", stream=True))
    assert len({event["id"] for event in found}) == 1
    assert {event["object"] for event in found} == {"chat.completion.chunk"}
    assert all("usage" not in event for event in found)
    choices = [event["choices"][0] for event in found]
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    # How many there are depends on who was slow: what waits is joined.
    *texts, last = (c["delta"] for c in choices[1:])
    assert all(delta.keys() == {"content"} for delta in texts) and last == {}
    assert "".join(delta["content"] for delta in texts) == " one two three"
    *reasons, reason = (c["finish_reason"] for c in choices)
    assert set(reasons) == {None} and reason == "stop"


def test_c18_a_text_with_line_ends_and_data_survives(server):
    text = 'a\n\ndata: {"x": 1}\r\n\x85\u2028\u2029\x0b\x00 "\\ 你🎉\n\n'
    server.engine.scripts["nasty"] = Script([*text])
    whole = server.chat("nasty").json()["choices"][0]["message"]["content"]
    assert whole == text
    stream = server.chat("nasty", stream=True)
    deltas = [e["choices"][0]["delta"] for e in events(stream)]
    assert "".join(d.get("content", "") for d in deltas) == text
    lines = [line for line in stream.iter_lines() if line]
    assert all(line.startswith("data: ") for line in lines)


def test_c18_completions_have_texts(server):
    body = server.complete("a text to go on from").json()
    assert body["object"] == "text_completion" and body["id"][:5] == "cmpl-"
    assert body["choices"] == [
        {
            "index": 0,
            "text": " one two three",
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    assert body["usage"] == usage(6, 4)
    found = events(server.complete("x", stream=True, max_tokens=2))
    assert {event["object"] for event in found} == {"text_completion"}
    *others, last = (event["choices"][0] for event in found)
    assert "".join(c["text"] for c in [*others, last]) == " one two"
    assert last["finish_reason"] == "length"
    assert all(c["finish_reason"] is None for c in others)


def test_c18_a_prompt_may_be_texts_or_ids(server):
    server.engine.scripts["[5, 6, 7]"] = Script([" ids"])
    server.engine.scripts["b"] = Script([" bee"])
    for prompt, texts, sent in (
        ("b", [" bee"], ["b"]),
        (["b", "c"], [" bee", " one two three"], ["b", "c"]),
        ([5, 6, 7], [" ids"], [[5, 6, 7]]),
        ([[5, 6, 7], [1]], [" ids", " one two three"], [[5, 6, 7], [1]]),
        (["b"] * 5, [" bee"] * 5, ["b"] * 5),
    ):
        before = len(server.engine.asked)
        body = server.complete(prompt).json()
        assert [c["text"] for c in body["choices"]] == texts
        assert [c["index"] for c in body["choices"]] == [*range(len(texts))]
        asked = [*server.engine.asked.values()][before:]
        assert [msg.text for msg in asked] == sent


def test_c18_streams_of_several_prompts_keep_their_index(server):
    server.engine.scripts["slow"] = Script([" slow", "er"], pace=0.05)
    found = events(server.complete(["slow", "b c"], stream=True))
    texts = {0: "", 1: ""}
    for event in found:
        texts[event["choices"][0]["index"]] += event["choices"][0]["text"]
    assert texts == {0: " slower", 1: " one two three"}


def test_usage_comes_with_a_stream_that_asks_for_it(server):
    for ask, kind in ((server.chat, "u one"), (server.complete, "u two")):
        fields = {"stream": True, "stream_options": {"include_usage": True}}
        found = events(ask(kind, **fields))
        assert [e["usage"] for e in found[:-1]] == [None] * (len(found) - 1)
        assert all(event["choices"] for event in found[:-1])
        assert found[-1]["choices"] == []
        assert found[-1]["usage"] == usage(2, 4)
        fields["stream_options"] = {"include_usage": False}
        assert all("usage" not in e for e in events(ask(kind, **fields)))


def test_c19_max_tokens_and_its_newer_name(server):
    for fields, limit in (
        ({}, MOST),
        ({"max_tokens": None}, MOST),
        ({"max_tokens": 2}, 2),
        ({"max_completion_tokens": 1}, 1),
        ({"max_tokens": 3, "max_completion_tokens": 2}, 2),
        ({"max_tokens": 100_000}, 100_000),
        ({"max_tokens": 10**30}, MOST),
    ):
        answer = server.chat("hi", **fields).json()
        assert last_params(server).max_tokens == limit
        expected = min(limit, 4)
        assert answer["usage"]["completion_tokens"] == expected
        reason = "stop" if expected == 4 else "length"
        assert answer["choices"][0]["finish_reason"] == reason
    server.complete("hi")
    assert last_params(server).max_tokens == 16
    server.complete("hi", max_tokens=10**30)
    assert last_params(server).max_tokens == MOST


def test_c19_a_whole_number_may_be_written_as_a_float(server):
    content = b'{"prompt": [5.0, 6], "max_tokens": 3.0, "top_k": 2.0}'
    headers = {"content-type": "application/json"}
    response = server.client.post(
        "/v1/completions", content=content, headers=headers
    )
    assert response.status_code == 200, response.text
    assert last_text(server) == [5, 6]
    assert all(type(token) is int for token in last_text(server))
    params = last_params(server)
    assert (params.max_tokens, params.top_k) == (3, 2)


def test_c11_streamed_and_not_count_alike(server):
    server.engine.scripts["held"] = Script(["", "", "é", ""])
    for limit in (1, 3, 4, 5, 9):
        fields = {"max_tokens": limit}
        whole = server.chat("held", **fields).json()
        fields |= {"stream": True, "stream_options": {"include_usage": True}}
        found = events(server.chat("held", **fields))
        count = whole["usage"]["completion_tokens"]
        assert count == found[-1]["usage"]["completion_tokens"] == min(limit, 5)
        reason = whole["choices"][0]["finish_reason"]
        assert reason == found[-2]["choices"][0]["finish_reason"]
        assert reason == ("stop" if limit >= 5 else "length")


def test_c16_every_parameter_reaches_the_engine(server):
    asked = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.1,
        "seed": -5,
        "presence_penalty": -1.5,
        "frequency_penalty": 0.5,
        "repetition_penalty": 1.25,
        "logit_bias": {"5": -100, "70": 1.5},
        "ignore_eos": True,
        "stop_token_ids": [7, 8],
        "max_tokens": 3,
    }
    for ask in (server.chat, server.complete):
        assert ask("hi", **asked).status_code == 200
        assert last_params(server) == SamplingParams(**asked)
        assert ask("hi").status_code == 200
        default = SamplingParams(
            temperature=1.0, max_tokens=last_params(server).max_tokens
        )
        assert last_params(server) == default


def test_c16_null_is_the_same_as_absent(server):
    names = (
        "model temperature top_p top_k min_p seed presence_penalty stop n "
        "frequency_penalty repetition_penalty logit_bias ignore_eos stream "
        "stop_token_ids stream_options logprobs max_tokens tools user"
    )
    nulls = dict.fromkeys(names.split())
    for ask in (server.chat, server.complete):
        assert ask("hi", **nulls).status_code == 200, ask("hi", **nulls).text
        assert last_params(server).temperature == 1.0


def test_c16_neutral_values_pass(server):
    for fields in (
        {"n": 1, "presence_penalty": 0, "frequency_penalty": 0.0},
        {"tools": [], "tool_choice": "none", "parallel_tool_calls": True},
        {"response_format": {"type": "text"}, "modalities": ["text"]},
        {"best_of": 1, "echo": False, "suffix": ""},
        {"logit_bias": {}, "stop": [], "store": False, "functions": []},
        {"service_tier": "auto", "min_tokens": 0, "top_logprobs": None},
    ):
        for ask in (server.chat, server.complete):
            assert ask("hi", **fields).status_code == 200, fields


def test_c20_unknown_fields_are_ignored(server):
    fields = {"user": "me", "metadata": {"a": 1}, "what_is_this": [1]}
    assert server.chat("hi", **fields).status_code == 200
    assert server.complete("hi", **fields).status_code == 200


def test_c16_n_answers_to_one_prompt(server):
    server.engine.scripts["some words"] = Script([" a", " b"], pace=0.01)
    engine = server.engine
    del engine.log[:]
    body = server.chat("some words", n=3, seed=2**63 - 2, max_tokens=2).json()
    assert [c["index"] for c in body["choices"]] == [0, 1, 2]
    assert {c["message"]["content"] for c in body["choices"]} == {" a b"}
    assert body["usage"] == usage(2, 6)
    first, *others = [uid for what, uid in engine.log if what == "ask"]
    heard = engine.log.index(("reply", first))
    assert all(engine.log.index(("ask", uid)) > heard for uid in others)
    seeds = [engine.asked[u].sampling_params.seed for u in (first, *others)]
    assert seeds == [2**63 - 2, 2**63 - 1, -(2**63)]


def test_c16_n_answers_in_a_stream(server):
    server.engine.scripts["q"] = Script([" a", " b"])
    found = events(server.complete(["q", "q r"], n=2, stream=True))
    texts = ["", "", "", ""]
    for event in found:
        (choice,) = event["choices"]
        texts[choice["index"]] += choice["text"]
    assert texts == [" a b", " a b", " one two three", " one two three"]
    ends = [e["choices"][0]["finish_reason"] for e in found]
    assert sum(end is not None for end in ends) == 4
    chat = events(server.chat("q", n=2, stream=True))
    roles = [
        c["index"] for e in chat for c in e["choices"] if "role" in c["delta"]
    ]
    assert sorted(roles) == [0, 1]


def test_c16_n_answers_of_one_token(server):
    for stream in (False, True):
        response = server.complete("short", n=3, max_tokens=1, stream=stream)
        bodies = events(response) if stream else [response.json()]
        choices = [choice for body in bodies for choice in body["choices"]]
        assert sorted(c["index"] for c in choices) == [0, 1, 2]
        assert {c["text"] for c in choices} == {" one"}


def test_c16_without_a_seed_there_is_none(server):
    server.chat("hi", n=2)
    assert last_params(server).seed is None


def test_c17_logprobs_of_a_chat(server):
    server.engine.scripts["lp"] = Script(["né", " x"])
    body = server.chat("lp", logprobs=True, top_logprobs=2).json()
    assert last_params(server).logprobs == 2
    content = body["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in content] == ["né", " x"]
    assert [entry["logprob"] for entry in content] == [-0.5, -1.5]
    assert bytes(b for e in content for b in e["bytes"]) == "né x".encode()
    assert content[1]["top_logprobs"] == [
        {"token": " x0", "logprob": -1, "bytes": [65, 0]},
        {"token": " x1", "logprob": -2, "bytes": [65, 1]},
    ]
    found = events(
        server.chat("lp", logprobs=True, top_logprobs=2, stream=True)
    )
    streamed = [
        entry
        for event in found
        if event["choices"][0]["logprobs"]
        for entry in event["choices"][0]["logprobs"]["content"]
    ]
    assert streamed == content
    bare = server.chat("lp", logprobs=True).json()["choices"][0]["logprobs"]
    assert [e["top_logprobs"] for e in bare["content"]] == [[], []]
    assert last_params(server).logprobs == 0
    assert server.chat("lp").json()["choices"][0]["logprobs"] is None
    assert last_params(server).logprobs is None


def test_c17_logprobs_of_a_completion(server):
    server.engine.scripts["lp"] = Script(["né", " x", "y"])
    choice = server.complete("lp", logprobs=2).json()["choices"][0]
    whole = {
        "tokens": ["né", " x", "y"],
        "token_logprobs": [-0.5, -1.5, -2.5],
        "top_logprobs": [
            {"né0": 0, "né1": -1},
            {" x0": -1, " x1": -2},
            {"y0": -2, "y1": -3},
        ],
        "text_offset": [0, 2, 4],
    }
    assert choice["logprobs"] == whole
    joined: dict[str, list] = {name: [] for name in whole}
    for event in events(server.complete("lp", logprobs=2, stream=True)):
        for name, values in event["choices"][0]["logprobs"].items():
            joined[name] += values
    assert joined == whole
    choice = server.complete("lp", logprobs=0).json()["choices"][0]
    assert choice["logprobs"]["top_logprobs"] is None
    assert choice["logprobs"]["tokens"] == ["né", " x", "y"]


def entry(token: str, raw: bytes, *tops: tuple[str, float]) -> dict:
    alike = [
        {"token": text, "logprob": value, "bytes": []} for text, value in tops
    ]
    return {
        "token": token,
        "logprob": -1,
        "bytes": [*raw],
        "top_logprobs": alike,
    }


def test_c17_tokens_that_are_parts_of_a_character():
    body = OpenAICompletionRequest(prompt="x", logprobs=2)
    party = "🎉".encode()
    entries = [
        entry("a", b"a", ("a", -1), ("b", -2)),
        entry("�", party[:1], ("�", -1), ("�", -3)),
        entry("�", party[1:3]),
        entry("�", party[3:] + b"b"),
        entry("", b""),
        entry("é", "é".encode()),
    ]
    answer = Piece(0, "a🎉bé", entries, "stop")
    usage = Usage.model_construct()
    whole = TextWriter("tiny", body).whole([answer], usage)
    logprobs = whole.choices[0].logprobs
    assert logprobs.text_offset == [0, 1, 1, 1, 3, 3]
    assert logprobs.top_logprobs[:2] == [{"a": -1, "b": -2}, {"�": -1}]


def test_c20_content_and_roles(server):
    parts = [{"type": "text", "text": "Say hi"}, {"type": "text", "text": "!"}]
    messages = [
        {"role": "developer", "content": "be short"},
        {"role": "user", "content": parts},
        {"role": "assistant", "content": None, "tool_calls": None},
        {"role": "assistant", "refusal": None, "annotations": []},
        {"role": "user", "content": "Say hi", "name": "me"},
    ]
    body = {"messages": messages}
    response = server.client.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    assert last_text(server) == [
        {"role": "system", "content": "be short"},
        {"role": "user", "content": "Say hi\n!"},
        {"role": "assistant", "content": ""},
        {"role": "assistant", "content": ""},
        {"role": "user", "content": "Say hi"},
    ]


def test_c22_models(server):
    (card,) = server.client.get("/v1/models").json()["data"]
    assert card["id"] == "tiny" and card["object"] == "model"
    assert card["root"] == "/models/tiny"
    one = server.client.get("/v1/models/tiny").json()
    assert one["id"] == "tiny" and one["object"] == "model"
    assert server.chat("hi", model="tiny").json()["model"] == "tiny"
    assert server.chat("hi", model="tiny/").json()["model"] == "tiny"


def test_c22_a_path_may_be_the_name():
    with served(model_name="/models/tiny") as server:
        for name in ("/models/tiny", "/models/tiny/"):
            assert (
                server.chat("hi", model=name).json()["model"] == "/models/tiny"
            )
            quoted = name.replace("/", "%2F")
            for path in (name, quoted):
                found = server.client.get(f"/v1/models/{path}")
                assert found.json()["id"] == "/models/tiny"


def test_generate(server):
    body = {"prompt": "go", "max_tokens": 2, "ignore_eos": True}
    response = server.client.post("/generate", json=body)
    assert events(response) == [
        {"text": " one", "finish_reason": None},
        {"text": " two", "finish_reason": "length"},
    ]
    assert last_params(server) == SamplingParams(max_tokens=2, ignore_eos=True)
    whole = server.client.post("/generate", json=body | {"stream": False})
    assert whole.json() == {"text": " one two", "finish_reason": "length"}


def test_small_pages(server):
    assert server.client.get("/v1").json() == {"status": "ok"}
    found = server.client.get("/version").json()
    assert set(found) == {"version"} and found["version"]


def test_c23_health_asks_the_engine(server):
    before = server.engine.probes
    response = server.client.get("/health")
    assert response.status_code == 200
    assert response.json() == {"status": "ok", "numbers": NUMBERS}
    assert server.engine.probes == before + 1


def test_c23_probes_leave_no_trace(server):
    for _ in range(100):
        assert server.client.get("/health").status_code == 200
    assert server.manager.ack_map == {}


def test_requests_leave_no_trace(server):
    for fields in ({}, {"n": 3}, {"stream": True}, {"stop": "two"}):
        server.chat("trace", **fields)
        server.complete(["trace", "s"], **fields)
    assert server.manager.ack_map == {}


def test_numbers_are_never_given_twice(server):
    before = set(server.engine.asked)
    server.complete(["a"] * 50, n=2)
    new = set(server.engine.asked) - before
    assert len(new) == 100 and min(new) > max(before)


def test_the_schema_says_what_may_come(server):
    schema = server.client.get("/openapi.json").json()
    assert "HTTPValidationError" not in json.dumps(schema)
    for path, statuses in (
        ("/v1/chat/completions", "200 400 401 404 413 500 503"),
        ("/v1/completions", "200 400 401 404 413 500 503"),
        ("/generate", "200 400 401 413 500 503"),
    ):
        operation = schema["paths"][path]["post"]
        assert set(operation["responses"]) == set(statuses.split())
        content = operation["responses"]["200"]["content"]
        assert set(content) == {"application/json", "text/event-stream"}
    parts = schema["components"]["schemas"]
    chat = parts["ChatCompletionRequest"]
    assert chat["examples"] and chat["required"] == ["messages"]
    (temperature, null) = chat["properties"]["temperature"]["anyOf"]
    assert temperature["minimum"] == 0 and null == {"type": "null"}
    assert server.client.get("/docs").status_code == 200


@pytest.mark.until("ch25", "then functions can be called")
def test_the_schema_says_what_is_not_supported(server):
    parts = server.client.get("/openapi.json").json()["components"]["schemas"]
    tools = parts["ChatCompletionRequest"]["properties"]["tools"]
    assert tools["enum"] == [[], None]


def test_the_examples_of_the_schema_work(server):
    schema = server.client.get("/openapi.json").json()
    for path, operations in schema["paths"].items():
        if "post" not in operations:
            continue
        content = operations["post"]["requestBody"]["content"]
        name = content["application/json"]["schema"]["$ref"].rsplit("/")[-1]
        for example in schema["components"]["schemas"][name]["examples"]:
            answer = server.client.post(path, json=example)
            assert answer.status_code == 200, answer.text


def test_a_message_to_the_tokenizer_has_what_was_sent(server):
    server.complete("exactly this ", temperature=0)
    msg = server.engine.asked[max(server.engine.asked)]
    assert isinstance(msg, TokenizeMsg) and msg.text == "exactly this "


def test_this_process_needs_no_torch():
    code = (
        "import sys; import minisgl.server.api_server;"
        "print({'torch', 'transformers'} & {*sys.modules})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True
    )
    assert done.stdout == "set()\n", done.stderr
