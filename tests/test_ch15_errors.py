"""Errors: one shape for all, the field by name, and the next request works."""

import math
import socket
import time

import pytest

from minisgl.server import api_server
from tests.fakes.back_end import Script, events, served

SHAPE = {"message", "type", "param", "code"}


@pytest.fixture(scope="module")
def server():
    with served() as running:
        yield running


def info(response, status: int = 400) -> dict:
    """The error of a response; fails unless it has OpenAI's shape."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert set(body) == {"error"} and set(body["error"]) == SHAPE
    assert body["error"]["message"] and "\n" not in body["error"]["message"]
    kind = "server_error" if status >= 500 else "invalid_request_error"
    assert body["error"]["type"] == kind
    return body["error"]


BOTH = [
    ("max_tokens", ["5", 2.5, True, 0, -1, [1], math.nan]),
    ("temperature", [-1, math.nan, math.inf, "1", True, 1e300, []]),
    ("top_p", [0, 1.5, -0.1, "1", math.nan]),
    ("top_k", [0.5, "5", -2, True]),
    ("min_p", [-0.1, 1.1, "0"]),
    ("seed", [1.5, "1", 2**63, -(2**63) - 1, True]),
    ("n", [0, -1, 129, 1.5, "2", True]),
    ("presence_penalty", [2.1, -2.1, "0", math.nan]),
    ("frequency_penalty", [2.1, -2.1, [0]]),
    ("repetition_penalty", [0, -1, "1", 1e-300, 1e300]),
    ("logit_bias", [[1], "x", {f"{i}": 0 for i in range(301)}]),
    ("logit_bias.5", [{"5": 101}, {"5": -101}, {"5": "1"}, {"5": math.nan}]),
    ("logit_bias", [{"-1": 1}, {"1.5": 1}]),
    ("logit_bias.x", [{"x": 1}]),
    ("stop", ["", 5, ["a"] * 17, {}]),
    ("stop[1]", [["a", ""], ["a", 5]]),
    ("stop_token_ids", [5, "5", [1] * 301]),
    ("stop_token_ids[0]", [["5"], [-1], [2**31], [True], [1.5]]),
    ("stream", ["true", 1, "yes"]),
    ("ignore_eos", ["true", 1]),
    ("model", [5, ["tiny"]]),
]
REFUSED = [
    ("tools", [{}]),
    ("tool_choice", ["required"]),
    ("functions", [[{"name": "f"}]]),
    ("function_call", [{"name": "f"}]),
    ("response_format", [{"type": "json_schema"}]),
    ("audio", [{"voice": "x"}]),
    ("modalities", [["text", "audio"]]),
    ("prediction", [{"type": "content"}]),
    ("best_of", [2, True]),
    ("echo", [True, 0]),
    ("suffix", ["end"]),
    ("store", [True]),
    ("reasoning_effort", ["high"]),
    ("web_search_options", [{}]),
    ("chat_template_kwargs", [{"enable_thinking": False}]),
    ("guided_json", [{}]),
    ("min_tokens", [5]),
]
CHAT = [
    ("logprobs", ["true", 1, 5]),
    ("top_logprobs", [21, -1, "1", True, 5]),  # 5: without logprobs
    ("max_completion_tokens", ["5", 2.5, True, 0]),
    ("messages", [[], "hi", {}, 5]),
    ("messages[0]", [["hi"], [{"role": "user"}]]),
    ("messages[0].role", [[{"content": ""}]]),
]
LATER = [  # what a later chapter honours
    ("tools", [[{"type": "function"}]]),
    ("tool_choice", [{"type": "function"}]),
    ("response_format", [{"type": "json_object"}]),
]
TEXT = [
    ("logprobs", [21, -1, True, "5", 0.5]),
    ("prompt", [[], 5, {}, ["a"] * 2049]),
    ("prompt[1]", [["a", 5], [1, "a"], [1, -1], [1, 2**31], [1, True]]),
    ("prompt[1]", [[[1], []], [1, [2]], ["a", ["b"]], [1, 1.5]]),
    ("prompt[1][0]", [[[1], ["a"]], [[1], [-1]]]),
]


def cases(*tables) -> list:
    return [
        (name, v) for table in tables for name, values in table for v in values
    ]


def field(name: str) -> str:
    return name.split("[")[0].split(".")[0]


def test_every_wrong_field_is_named_and_the_server_goes_on(server):
    for ask, own in ((server.chat, CHAT), (server.complete, TEXT)):
        for name, value in cases(BOTH, REFUSED, own):
            for stream in (False, True):
                body = {"stream": stream} | {field(name): value}
                if field(name) == "prompt":
                    response = server.complete(value, stream=stream)
                elif field(name) == "messages":
                    path = "/v1/chat/completions"
                    response = post(server, path, body)
                else:
                    response = post_with(server, ask, body)
                assert info(response)["param"] == name, (name, value)
        server.answers()


@pytest.mark.until("ch25", "then forms and functions are honoured")
def test_forms_and_functions_are_refused(server):
    for ask in (server.chat, server.complete):
        for name, value in cases(LATER):
            assert info(post_with(server, ask, {name: value}))["param"] == name
    for turn, param in (
        ({"role": "tool", "content": ""}, "messages[0].role"),
        ({"role": "assistant", "tool_calls": [{"id": "x"}]}, "messages[0]"),
    ):
        body = {"messages": [turn]}
        error = info(server.client.post("/v1/chat/completions", json=body))
        assert error["param"] == param


def post(server, path: str, body: dict):
    """With NaN and the like, which a client's own encoder refuses."""
    import json

    return server.client.post(
        path,
        content=json.dumps(body),
        headers={"content-type": "application/json"},
    )


def post_with(server, ask, body: dict):
    if ask == server.chat:
        messages = [{"role": "user", "content": "hi"}]
        return post(
            server, "/v1/chat/completions", {"messages": messages} | body
        )
    return post(server, "/v1/completions", {"prompt": "hi"} | body)


def test_c12_edges_that_are_right_pass(server):
    for fields in (
        {"top_k": -1},
        {"top_k": 0},
        {"top_k": 1},
        {"top_k": 9_999_999},
        {"top_k": 10**30},
        {"top_p": 1},
        {"top_p": 1e-9},
        {"min_p": 0},
        {"min_p": 1},
        {"temperature": 0},
        {"temperature": 5e-324},
        {"seed": -(2**63)},
        {"logit_bias": {"4294967295": 100, "0": -100}},
    ):
        assert server.chat("hi", **fields).status_code == 200, fields


def test_c19_what_is_asked_of_a_stream_needs_a_stream(server):
    error = info(server.chat("hi", stream_options={"include_usage": True}))
    assert error["param"] == "stream_options"
    for options in ({"include_usage": "yes"}, {"include_obfuscation": True}):
        error = info(server.chat("hi", stream=True, stream_options=options))
        assert error["param"] == f"stream_options.{next(iter(options))}"


@pytest.mark.parametrize(
    ("part", "param"),
    [
        ({"type": "image_url", "image_url": {"url": "x"}}, ".type"),
        ({"type": "input_audio"}, ".type"),
        ({"type": "nonsense", "text": "a"}, ".type"),
        ({"text": "a"}, ".type"),
        ({"type": "text"}, ".text"),
        ({"type": "text", "text": 5}, ".text"),
        ("just text", ""),
    ],
)
def test_c20_other_parts_than_text_are_refused(server, part, param):
    content = [{"type": "text", "text": "see:"}, part]
    body = {"messages": [{"role": "user", "content": content}]}
    error = info(server.client.post("/v1/chat/completions", json=body))
    assert error["param"] == f"messages[0].content[1]{param}"


@pytest.mark.parametrize(
    "turn",
    [
        {"role": "user", "content": None},
        {"role": "system"},
        {"role": "assistant", "content": "", "function_call": {"name": "f"}},
        {"role": "user", "content": "x", "tool_call_id": "1"},
        "hi",
        None,
    ],
)
def test_c20_odd_turns_are_refused(server, turn):
    body = {"messages": [{"role": "user", "content": "a"}, turn]}
    error = info(server.client.post("/v1/chat/completions", json=body))
    assert error["param"] == "messages[1]"


@pytest.mark.parametrize("stream", [False, True])
def test_c22_an_unknown_model_is_a_404(server, stream):
    for ask in (server.chat, server.complete):
        for name in ("gpt-4", "", "tiny2", "TINY"):
            error = info(ask("hi", model=name, stream=stream), 404)
            assert error["code"] == "model_not_found"
            assert error["param"] == "model" and "tiny" in error["message"]
    info(server.client.get("/v1/models/gpt-4"), 404)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nowhere", 404),
        ("POST", "/v1/nowhere", 404),
        ("GET", "/v1/chat/completions/", 404),
        ("GET", "/v1/chat/completions", 405),
        ("DELETE", "/v1/models", 405),
        ("POST", "/health", 405),
    ],
)
def test_c22_wrong_routes_and_methods(server, method, path, status):
    response = server.client.request(method, path)
    assert path in info(response, status)["message"]
    assert ("allow" in response.headers) == (status == 405)


BAD_BODIES = [
    b"",
    b"{",
    b"[]",
    b"null",
    b'"hi"',
    b"\xff\xfe",
    b'{"prompt": "\xff"}',
    b'{"prompt": "a", "seed": ' + b"9" * 5000 + b"}",
    b'{"prompt": ' + b"[" * 100_000,
    b'{"prompt": "a", "temperature": 1e999}',
    b'{"messages": "a", "prompt": {}}',
    b'{"prompt": "\\ud83d"}',
    b'{"prompt": ["a", "b\\ude00"]}',
    b'{"prompt": "a", "logit_bias": {"\\ud83d": 1}}',
    b'{"prompt": "a", "model": "\\ud83d"}',
]


@pytest.mark.parametrize("content", BAD_BODIES, ids=range(len(BAD_BODIES)))
def test_c22_bodies_that_are_no_request(server, content):
    headers = {"content-type": "application/json"}
    for path in ("/v1/completions", "/v1/chat/completions", "/generate"):
        response = server.client.post(path, content=content, headers=headers)
        status = (
            404 if b'model": ' in content and path == "/v1/completions" else 400
        )
        info(response, status)
    server.answers()


def test_half_a_character_in_a_chat(server):
    body = b'{"messages": [{"role": "user", "content": "\\ud83d"}]}'
    headers = {"content-type": "application/json"}
    url = "/v1/chat/completions"
    error = info(server.client.post(url, content=body, headers=headers))
    assert error["param"] == "messages[0].content"


def test_a_body_needs_its_header(server):
    for headers in ({}, {"content-type": "text/plain"}):
        response = server.client.post(
            "/v1/completions", content=b'{"prompt": "a"}', headers=headers
        )
        assert "content-type: application/json" in info(response)["message"]


def test_json_that_breaks_off_is_said_to(server):
    headers = {"content-type": "application/json"}
    response = server.client.post(
        "/v1/completions", content=b'{"prompt": ', headers=headers
    )
    assert "not JSON" in info(response)["message"]


def test_generate_ignores_nothing(server):
    body = {"prompt": "a", "max_tokens": 2}
    for field_, value in (
        ("temperature", 1),
        ("stop", "x"),
        ("max_tokens", "2"),
    ):
        response = server.client.post("/generate", json=body | {field_: value})
        assert info(response)["param"] == field_


def test_a_body_too_large_is_refused_before_it_is_read(server):
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
        "Content-Type: application/json\r\nContent-Length: {}\r\n\r\n"
    )
    port = server.client.base_url.port
    with socket.create_connection(("127.0.0.1", port), timeout=5) as peer:
        peer.sendall(head.format(10**12).encode())
        assert peer.recv(1000).startswith(b"HTTP/1.1 413 ")


def test_a_body_too_large_in_chunks_is_refused(server):
    def chunks():
        yield b'{"prompt": "'
        for _ in range(5):
            yield b"a" * 2**20
        yield b'"}'

    headers = {"content-type": "application/json"}
    url = "/v1/completions"
    response = server.client.post(url, content=chunks(), headers=headers)
    info(response, 413)
    assert server.complete("a" * (3 * 2**20)).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_a_refusal_of_the_engine_is_a_400(server, stream):
    script = Script(fail_at=0, fail="refused", error="the prompt is too long")
    server.engine.scripts["refused"] = script
    for ask in (server.chat, server.complete):
        error = info(ask("refused", stream=stream))
        assert error["message"] == "the prompt is too long"
    body = {"prompt": "refused", "max_tokens": 5, "stream": stream}
    info(server.client.post("/generate", json=body))
    assert server.manager.ack_map == {}
    server.answers()


@pytest.mark.parametrize("stream", [False, True])
def test_one_bad_prompt_of_several_refuses_all(server, stream):
    script = Script(fail_at=0, fail="refused", pace=0.1)
    server.engine.scripts["refused late"] = script
    server.engine.scripts["long"] = Script([" x"] * 100, pace=0.01)
    before = len(server.engine.aborted)
    info(server.complete(["long", "refused late"], stream=stream))
    assert server.engine.waits(lambda: len(server.engine.aborted) > before)
    assert server.manager.ack_map == {}


@pytest.mark.parametrize("at", [0, 2])
def test_a_failure_of_the_engine_is_a_500(server, at):
    server.engine.scripts[f"fails {at}"] = Script(fail_at=at)
    error = info(server.chat(f"fails {at}"), 500)
    assert error["message"] == "the fake engine failed"
    info(server.complete(["hi", f"fails {at}"], n=2), 500)
    assert server.manager.ack_map == {}
    server.answers()


def test_a_failure_before_the_first_token_of_a_stream_is_a_500(server):
    server.engine.scripts["fails at once"] = Script(fail_at=0)
    info(server.chat("fails at once", stream=True), 500)


def test_a_failure_in_a_stream_is_an_event(server):
    server.engine.scripts["fails later"] = Script(fail_at=2)
    for ask in (server.chat, server.complete):
        options = {"include_usage": True}
        response = ask("fails later", stream=True, stream_options=options)
        assert response.status_code == 200
        *_, ended, error = events(response)
        assert ended["choices"][0]["finish_reason"] == "error"
        assert set(error) == {"error"} and set(error["error"]) == SHAPE
        assert error["error"]["message"] == "the fake engine failed"
    assert server.manager.ack_map == {}
    server.answers()


def test_a_failure_of_one_answer_stops_the_others(server):
    server.engine.scripts["long one"] = Script([" x"] * 500, pace=0.01)
    server.engine.scripts["fails two"] = Script(fail_at=2, pace=0.02)
    response = server.complete(
        ["long one", "fails two"], stream=True, max_tokens=500
    )
    assert events(response)[-1]["error"]
    uid = max(server.engine.asked) - 1
    assert server.engine.waits(lambda: uid in server.engine.aborted)


def test_c23_health_of_an_engine_that_is_silent(server, monkeypatch):
    monkeypatch.setattr("minisgl.server.info.PATIENCE", 0.3)
    server.engine.mute = True
    begin = time.monotonic()
    assert "0.3 s" in info(server.client.get("/health"), 503)["message"]
    assert 0.25 < time.monotonic() - begin < 3
    server.engine.mute = False
    assert server.client.get("/health").status_code == 200
    assert server.manager.ack_map == {}


def test_c23_health_of_an_engine_that_is_busy(server, monkeypatch):
    monkeypatch.setattr("minisgl.server.info.PATIENCE", 0.3)
    server.engine.scripts["busy"] = Script([" x"] * 30, pace=0.03)
    server.engine.busy = True
    try:
        with server.client.stream(
            "POST",
            "/v1/completions",
            json={"prompt": "busy", "stream": True, "max_tokens": 30},
        ):
            response = server.client.get("/health")
            assert response.json() == {"status": "busy", "numbers": {}}
        # A machine with much else to do may be late to hear of the abort.
        until = time.monotonic() + 10
        while (response := server.client.get("/health")).status_code == 200:
            assert time.monotonic() < until, "the stream has not ended"
        info(response, 503)
    finally:
        server.engine.busy = False


def test_c23_when_the_engine_is_gone_all_who_wait_are_told():
    with served() as server:
        server.engine.scripts["never"] = Script(pace=60)
        server.engine.scripts["endless"] = Script([" x"] * 10**6, pace=0.01)
        body = {"prompt": "endless", "max_tokens": 10**6, "stream": True}
        with server.client.stream(
            "POST", "/v1/completions", json=body
        ) as stream:
            lines = stream.iter_lines()
            next(lines)
            engine, loop = server.engine, server.loop
            loop.call_later(0.3, server.manager.fail_all, "it died")
            error = info(server.chat("never"), 503)
            assert error["message"] == "it died"
            rest = [line for line in lines if line]
        assert "it died" in rest[-2] and '"error"' in rest[-2]
        assert '"finish_reason":"error"' in rest[-3]
        for stream in (False, True):
            assert info(server.chat("hi", stream=stream), 503)["message"]
        info(server.client.get("/health"), 503)
        assert server.manager.ack_map == {}
        assert not engine.aborted


KEY = "a secret é"


@pytest.fixture(scope="module")
def guarded():
    origins = ("https://page.example",)
    with served(api_key=KEY, cors_origins=origins, root_path="/llm") as running:
        yield running


def bearer(key: str) -> dict:
    return {"authorization": f"Bearer {key}".encode()}


@pytest.mark.parametrize("prefix", ["", "/llm"])
def test_c23_a_key_guards_the_api_and_nothing_else(guarded, prefix):
    client = guarded.client
    guarded_paths = [
        "/v1",
        "/v1/models",
        "/v1/models/tiny",
        "/v1/chat/completions",
    ]
    guarded_paths += [
        "/v1/completions",
        "/generate",
        "/v1/nowhere",
        "/v1//x",
    ]
    for path in guarded_paths:
        for key in ("", "wrong", KEY[1:], KEY + "x"):
            headers = bearer(key) if key else {}
            response = client.get(prefix + path, headers=headers)
            assert info(response, 401)["code"] == "invalid_api_key"
            assert response.headers["www-authenticate"] == "Bearer"
    for path in ("/health", "/version", "/docs", "/openapi.json"):
        assert client.get(prefix + path).status_code == 200
    for path in ("/v1", "/v1/models", "/v1/models/tiny"):
        assert client.get(prefix + path, headers=bearer(KEY)).status_code == 200
    headers = {"authorization": f"bearer {KEY}".encode()}
    assert client.get(prefix + "/v1", headers=headers).status_code == 200
    headers = {"authorization": f"Basic {KEY}".encode()}
    assert client.get(prefix + "/v1", headers=headers).status_code == 401
    body = {"messages": [{"role": "user", "content": "hi"}]}
    url = f"{prefix}/v1/chat/completions"
    assert client.post(url, json=body).status_code == 401
    assert client.post(url, json=body, headers=bearer(KEY)).status_code == 200


def test_without_a_key_any_key_will_do(server):
    response = server.client.get("/v1/models", headers=bearer("anything"))
    assert response.status_code == 200


def test_pages_of_other_origins(guarded, server):
    url = "/v1/chat/completions"
    ask = {
        "origin": "https://page.example",
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type",
    }
    allowed = guarded.client.options(url, headers=ask)
    assert allowed.status_code == 200
    name = "access-control-allow-origin"
    assert allowed.headers[name] == "https://page.example"
    refused = guarded.client.post(
        url, json={}, headers={"origin": ask["origin"]}
    )
    assert refused.status_code == 401
    assert refused.headers[name] == "https://page.example"
    other = guarded.client.options(
        url, headers=ask | {"origin": "https://evil"}
    )
    assert name not in other.headers
    response = server.client.get("/v1", headers={"origin": ask["origin"]})
    assert name not in response.headers


def test_the_schema_knows_of_key_and_prefix(guarded):
    schema = guarded.client.get("/openapi.json").json()
    assert schema["servers"] == [{"url": "/llm"}]
    assert schema["paths"]["/v1/models"]["get"]["security"] == [{"key": []}]
    assert "security" not in schema["paths"]["/health"]["get"]
    assert schema["components"]["securitySchemes"]["key"]["scheme"] == "bearer"


def test_a_fault_of_ours_is_a_500_and_harms_nobody(server, monkeypatch, caplog):
    def broken(*args, **kwargs):
        raise RuntimeError("a secret of ours")

    with monkeypatch.context() as patched:
        # From ch22 on it is another class, which counts.
        [name] = [n for n in vars(api_server) if n.endswith("Generation")]
        patched.setattr(api_server, name, broken)
        answer = server.chat("hi")
    assert "secret" not in info(answer, 500)["message"]
    # The connection ends; unsaid, a client's next request on it would be lost.
    assert answer.headers["connection"] == "close"
    assert server.engine.waits(lambda: "a secret of ours" in caplog.text)
    server.answers()
