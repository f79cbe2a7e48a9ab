"""Forms and functions at the door, in a chat's text, and in the answer."""

import itertools
import json
from pathlib import Path

import pytest

from minisgl import message as m
from minisgl.message.tokenizer import ChatPrompt
from minisgl.sampling_params import SamplingParams
from minisgl.server.chat import ChatWriter
from minisgl.server.chat_request import ChatCompletionRequest
from minisgl.server.generation import Piece
from minisgl.server.responses import Usage
from minisgl.server.tool_calls import CallSplitter
from minisgl.structure.tags import END, OPEN, ToolGrammar
from minisgl.tokenizer.chat import render_chat
from minisgl.tokenizer.text import Tokenizer
from minisgl.tokenizer.tokenize import TokenizeManager
from minisgl.tokenizer.tools import as_plain_turns, knows_calls
from tests.fakes.back_end import Script, events, served
from tests.parity import model_under_test

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 9}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER = {
    "type": "function",
    "function": {"name": "weather", "description": "Now.", "parameters": CITY},
}
CLOCK = {"type": "function", "function": {"name": "clock"}}
TOOLS = [WEATHER, CLOCK]
CALL = OPEN + '\n{"name": "weather", "arguments": {"city": "O}"}' + END
CALLS = CALL + "\n" + OPEN + '\n{"name": "clock", "arguments": {}' + END
ASK = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def server():
    with served() as running:
        yield running


def sent(server) -> m.TokenizeMsg:
    return server.engine.asked[max(server.engine.asked)]


def refusal(response) -> dict:
    assert response.status_code == 400, response.text
    return response.json()["error"]


def format_of(schema, **fields) -> dict:
    named = {"name": "answer", "schema": schema} | fields
    return {"type": "json_schema", "json_schema": named}


def test_forms_reach_the_engine(server):
    open_city = {k: v for k, v in CITY.items() if k != "additionalProperties"}
    for ask in (server.chat, server.complete):
        for fields, form in (
            ({"regex": "a+"}, ("regex", "a+")),
            ({"choice": ["a", "é"]}, ("choice", json.dumps(["a", "é"]))),
            ({"grammar": "root ::= x"}, ("grammar", "root ::= x")),
            ({"response_format": {"type": "text"}}, None),
            (
                {"response_format": {"type": "json_object"}},
                ("json_schema", '{"type": "object"}'),
            ),
            (
                {"response_format": format_of(open_city)},
                ("json_schema", json.dumps(open_city)),
            ),
            (
                {"response_format": format_of(open_city, strict=True)},
                ("json_schema", json.dumps(CITY)),
            ),
        ):
            assert ask("hi", **fields).status_code == 200, fields
            assert sent(server).sampling_params.form == form


@pytest.mark.parametrize("stream", [False, True])
def test_bad_forms_are_named_with_their_place(server, stream):
    bad = {
        "type": "object",
        "properties": {"a": {"type": "integer", "not": {}}},
    }
    place = "response_format.json_schema"
    for fields, param, said in (
        ({"regex": "(a"}, "regex", "at position 0"),
        ({"regex": ""}, "regex", ""),
        ({"choice": []}, "choice", ""),
        ({"choice": ["a", ""]}, "choice[1]", ""),
        ({"grammar": 5}, "grammar", ""),
        ({"response_format": {"type": "xml"}}, "response_format.type", ""),
        ({"response_format": {"type": "json_schema"}}, "response_format", ""),
        (
            {"response_format": format_of(bad)},
            f"{place}.schema",
            "at #/properties/a/not: this keyword is not supported",
        ),
        ({"response_format": format_of(CITY, name="a b")}, f"{place}.name", ""),
        ({"regex": "a", "choice": ["a"]}, "choice", "beside regex"),
        (
            {"regex": "a", "response_format": {"type": "json_object"}},
            "regex",
            "beside response_format",
        ),
    ):
        for ask in (server.chat, server.complete):
            error = refusal(ask("hi", stream=stream, **fields))
            assert error["param"] == param and said in error["message"]
    script = Script([], 0, "refused", "grammar: no rule root")
    server.engine.scripts["a bad one"] = script
    error = refusal(server.chat("a bad one", stream=stream, grammar="x ::= y"))
    assert error["param"] == "grammar" and "no rule root" in error["message"]
    for field, value in (
        ("logit_bias", {"9999": 1}),
        ("stop_token_ids", [9999]),
    ):
        text = f"{field} must have tokens of the vocabulary of 512, got 9999"
        script = Script([], 0, "refused", text)
        server.engine.scripts["a bad one"] = script
        error = refusal(
            server.chat("a bad one", stream=stream, **{field: value})
        )
        assert error["param"] == field
    server.answers()


@pytest.mark.parametrize("stream", [False, True])
def test_bad_functions_are_named(server, stream):
    bad = {
        "type": "function",
        "function": {"name": "f", "parameters": {"type": "x"}},
    }
    schema = "tools[0].function.parameters"
    listed = {"name": "f", "parameters": {"type": "array"}}
    called = {"name": "f", "parameters": {"anyOf": [CITY]}}
    inner = {"type": "object", "properties": {}}
    few = {"type": "object", "properties": {f"p{i}": inner for i in range(250)}}
    grows = few | {"properties": {"a": few, "b": few, "c": few, "d": few}}
    for fields, param in (
        ({"tools": [{}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [bad]}, schema),
        ({"tools": [{"type": "function", "function": listed}]}, schema),
        ({"tools": [WEATHER, WEATHER]}, "tools[1].function.name"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": "any"}, "tool_choice"),
        (
            {"tools": TOOLS, "tool_choice": choose("x")},
            "tool_choice.function.name",
        ),
        ({"tools": TOOLS, "regex": "a"}, "regex"),
        ({"tools": TOOLS, "parallel_tool_calls": "no"}, "parallel_tool_calls"),
        # What only the whole form shows.
        ({"tools": [{"type": "function", "function": called}]}, "tools"),
        ({"choice": ["a" * 40000, "b" * 40000]}, "choice"),
        ({"response_format": format_of(grows, strict=True)}, "response_format"),
    ):
        error = refusal(server.chat("hi", stream=stream, **fields))
        assert error["param"] == param, (fields, error)
    assert refusal(server.complete("hi", tools=TOOLS))["param"] == "tools"


def choose(name: str) -> dict:
    return {"type": "function", "function": {"name": name}}


def test_choices_reach_the_engine(server):
    none = {"type": "object", "properties": {}, "additionalProperties": False}
    both = {"weather": CITY, "clock": none}
    for fields, grammar in (
        ({}, ToolGrammar(both)),
        ({"parallel_tool_calls": False}, ToolGrammar(both, False, False)),
        ({"tool_choice": "required"}, ToolGrammar(both, True)),
        (
            {"tool_choice": choose("clock")},
            ToolGrammar({"clock": none}, True, False),
        ),
    ):
        assert server.chat("hi", tools=TOOLS, **fields).status_code == 200
        text = sent(server).sampling_params.tool_calls
        assert ToolGrammar.from_json(text) == grammar
        assert json.loads(sent(server).text.functions) == TOOLS
    fields = {"tools": TOOLS, "tool_choice": "none", "regex": "a"}
    assert server.chat("hi", **fields).status_code == 200
    assert sent(server).sampling_params.form == ("regex", "a")
    assert sent(server).text == ASK


def conversation(**fields) -> dict:
    called = {"name": "weather", "arguments": '{"city": "Oslo"}'}
    turns = [
        dict(ASK[0]),
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "c1", "type": "function", "function": called}
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
    ]
    return {"messages": turns, "tools": TOOLS} | fields


def test_turns_with_calls_reach_the_engine(server):
    path = "/v1/chat/completions"
    assert server.client.post(path, json=conversation()).status_code == 200
    turns = sent(server).text.turns
    assert turns[1]["tool_calls"][0]["function"]["name"] == "weather"
    for i, change, param in (
        (1, {"role": "user", "content": "x"}, "messages[1]"),
        (2, {"tool_call_id": None}, "messages[2]"),
        (2, {"tool_call_id": "c2"}, "messages[2].tool_call_id"),
        (2, {"content": None}, "messages[2]"),
        (0, {"tool_call_id": "c1"}, "messages[0]"),
        (0, {"function_call": {"name": "f"}}, "messages[0]"),
    ):
        body = conversation()
        body["messages"][i] |= change
        assert refusal(server.client.post(path, json=body))["param"] == param
    body = conversation()
    call = body["messages"][1]["tool_calls"][0]["function"]
    for arguments in ("{", "[]", "5"):
        call["arguments"] = arguments
        error = refusal(server.client.post(path, json=body))
        assert error["param"] == "messages[1].tool_calls[0].function"


def test_a_prompt_with_functions_survives_the_queue():
    prompt = ChatPrompt([{"role": "user", "content": "é"}], '[{"__type__": 1}]')
    message = m.TokenizeMsg(1, prompt, SamplingParams(choice=["a"]))
    found = m.BaseTokenizerMsg.decoder(m.BaseTokenizerMsg.encoder(message))
    assert found == message


KNOWS = (
    "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}"
    "[{{ m.role }}]{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>"
    "{{ c.function.arguments.city }}{% endfor %}{% endfor %}"
)
PLAIN = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"


def test_functions_in_the_text_of_a_chat():
    body = ChatCompletionRequest.model_validate(conversation())
    prompt = body.prompt
    assert isinstance(prompt, ChatPrompt)
    functions = json.loads(prompt.functions)
    assert knows_calls(KNOWS) and not knows_calls(PLAIN)
    assert not knows_calls(KNOWS + "<function=f>")
    turns = as_plain_turns(prompt.turns, functions)
    assert [turn["role"] for turn in turns] == [
        "system",
        "user",
        "assistant",
        "user",
    ]
    assert json.dumps(WEATHER) in turns[0]["content"]
    example = OPEN + '\n{"name": "weather", "arguments": {"city": "Oslo"}' + END
    assert turns[2]["content"] == example
    assert "<tool_response>\nrain\n" in turns[3]["content"]
    turns = as_plain_turns(
        [{"role": "system", "content": "Hm."}, *ASK], functions
    )
    assert turns[0]["content"].startswith("Hm.\n\nYou can call")
    assert as_plain_turns(prompt.turns[:1], []) == ASK
    for template in (KNOWS, PLAIN):
        tokenizer = Tokenizer.__new__(Tokenizer)
        tokenizer._template, tokenizer.names = template, {}
        said = tokenizer.apply_tool_template(prompt.turns, functions)
        assert "Oslo" in said and "rain" in said and "Now." in said
        assert ("You can call" in said) == (template == PLAIN)
    assert "[]" not in render_chat(KNOWS, ASK, {}, [])


def test_a_worker_makes_tokens_of_it():
    from minisgl.tokenizer.text import load_light_tokenizer

    tokenizer = load_light_tokenizer(str(model_under_test("qwen3-tiny")))
    body = ChatCompletionRequest.model_validate(conversation())
    message = m.TokenizeMsg(1, body.prompt, SamplingParams())
    [ids] = TokenizeManager(tokenizer).tokenize([message])
    assert "weather" in tokenizer.decode(ids.tolist())


def read(pieces) -> tuple[str, list[list[str]], bool]:
    splitter, text, calls = CallSplitter(), "", []
    for i, piece in enumerate(pieces):
        for part in splitter.feed(piece, last=i == len(pieces) - 1):
            if part.name is not None:
                calls.append([part.name, ""])
            if part.call is None:
                text += part.text
            else:
                calls[part.call][1] += part.text
    return text, calls, splitter.complete


WEATHERS = ["weather", '{"city": "O}"}']
ANSWERS = [
    ("no call at all <tool", "no call at all <tool", [], False),
    (CALL, "", [WEATHERS], True),
    (f"Let me see.\n{CALL}\n", "Let me see.", [WEATHERS], True),
    (CALLS, "", [WEATHERS, ["clock", "{}"]], True),
    (CALL[:-15], "", [["weather", '{"city": "O}"']], False),
    (CALL[:20], CALL[:20], [], False),
    *((CALL[:-n], "", [WEATHERS], False) for n in range(1, len(END) + 1)),
    *((f"{CALL}\n{CALL[:n]}", "", [WEATHERS], True) for n in range(1, 21)),
    ("a  b ", "a  b ", [], False),
]


@pytest.mark.parametrize("answer", ANSWERS)
def test_calls_are_told_from_text_however_it_is_cut(answer):
    whole, *expected = answer
    assert read([whole]) == tuple(expected)
    assert read([*whole, ""]) == tuple(expected)
    for one, two in itertools.combinations(range(0, len(whole), 3), 2):
        cut = [whole[:one], whole[one:two], whole[two:]]
        assert read(cut) == tuple(expected)


def body_with_tools(**fields) -> ChatCompletionRequest:
    return ChatCompletionRequest.model_validate(
        {"messages": ASK, "tools": TOOLS} | fields
    )


def test_an_answer_with_calls_in_openais_shape():
    usage = Usage.model_construct()
    for text, reason, content, count, ended in (
        (CALLS, "stop", None, 2, "tool_calls"),
        (f"See: {CALL}", "stop", "See:", 1, "tool_calls"),
        ("Hello", "stop", "Hello", 0, "stop"),
        (CALL[:-9], "length", None, 1, "length"),
    ):
        writer = ChatWriter("tiny", body_with_tools())
        whole = writer.whole([Piece(0, text, [], reason)], usage)
        dumped = json.loads(whole.model_dump_json(exclude_unset=True))
        choice = dumped["choices"][0]
        calls = choice["message"].get("tool_calls", [])
        assert choice["message"]["content"] == content and len(calls) == count
        assert choice["finish_reason"] == ended
        ids = {call["id"] for call in calls}
        assert len(ids) == count and all(i.startswith("call_") for i in ids)
    writer = ChatWriter("tiny", body_with_tools(tool_choice="none"))
    whole = writer.whole([Piece(0, CALL, [], "stop")], usage)
    assert whole.choices[0].message.content == CALL


def test_a_stream_with_calls(server):
    server.engine.scripts["hi"] = Script(["Well, ", *CALLS])
    response = server.chat("hi", tools=TOOLS, stream=True, logprobs=True)
    chunks = [e for e in events(response) if isinstance(e, dict)]
    deltas = [chunk["choices"][0] for chunk in chunks]
    calls: list[dict] = []
    for delta in deltas:
        for call in delta["delta"].get("tool_calls", []):
            if "id" in call:
                assert call["type"] == "function"
                calls.append(
                    {"name": call["function"]["name"], "arguments": ""}
                )
            assert call["index"] == len(calls) - 1
            calls[-1]["arguments"] += call["function"]["arguments"]
    assert [c["name"] for c in calls] == ["weather", "clock"]
    assert json.loads(calls[0]["arguments"]) == {"city": "O}"}
    text = "".join(d["delta"].get("content", "") for d in deltas)
    assert text == "Well,"
    assert deltas[-1]["finish_reason"] == "tool_calls"
    tokens = [
        t for d in deltas if d["logprobs"] for t in d["logprobs"]["content"]
    ]
    assert len(tokens) == 1 + len(CALLS)
    del server.engine.scripts["hi"]


def test_the_schema_of_the_api_knows_forms_and_functions(server):
    parts = server.client.get("/openapi.json").json()["components"]["schemas"]
    chat = parts["ChatCompletionRequest"]["properties"]
    assert {"tools", "tool_choice", "regex", "choice"} <= set(chat)
    assert "enum" not in chat["tools"]
    texts = parts["OpenAICompletionRequest"]["properties"]
    assert texts["tools"]["enum"] == [[], None] and "grammar" in texts


def test_the_log_shows_prompts_with_functions():
    from minisgl.server.request_log import Record

    body = ChatCompletionRequest.model_validate(conversation())
    line = json.loads(Record(1, 0.0, body.prompt).as_json(1.0, True))
    assert line["prompt"]["turns"][0] == ASK[0]


def test_processes_without_torch_do_without_xgrammar():
    import subprocess
    import sys

    import minisgl

    code = (
        "import sys, minisgl.server.api_server, minisgl.tokenizer.server\n"
        "print([n for n in ('torch', 'xgrammar') if n in sys.modules])"
    )
    root = Path(minisgl.__file__).parents[1]
    command = [sys.executable, "-c", code]
    said = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert said.stdout == "[]\n", said.stderr
