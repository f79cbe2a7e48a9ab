"""Forms and calls over HTTP, with OpenAI's own client."""

import json

import openai
import pytest
from jsonschema import validate

from tests.live import Live, has_torch
from tests.parity import assert_parity, model_under_test, prompts, reference
from tools.structured_cases import many, obj, text, whole

SCHEMA = obj(
    name=text(6), size=whole(1, 30), tags=many({"enum": ["é", "b"]}, 2)
)
ASK = [{"role": "user", "content": "Describe a thing."}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": obj(city=text(5), days=whole(1, 9)),
    },
}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("live")
    with Live(folder, model_under_test("qwen3-tiny")) as live:
        yield live.wait_ready()


@pytest.fixture(scope="module")
def ask(server):
    url = f"http://127.0.0.1:{server.port}/v1"
    with openai.OpenAI(base_url=url, api_key="none") as client:
        model = client.models.list().data[0].id

        def create(**fields):
            given = {"messages": ASK, "max_tokens": 120, "model": model}
            try:
                return client.chat.completions.create(**given | fields)
            except (openai.APIConnectionError, openai.InternalServerError):
                raise AssertionError(server.said) from None

        create.client, create.model = client, model
        yield create


def format_of(schema) -> dict:
    named = {"name": "thing", "schema": schema, "strict": True}
    return {"type": "json_schema", "json_schema": named}


def test_json_of_a_schema_whole_and_streamed(ask):
    for seed in range(3):
        fields = {"seed": seed, "response_format": format_of(SCHEMA)}
        choice = ask(**fields, n=2).choices[1]
        assert choice.finish_reason == "stop"
        validate(json.loads(choice.message.content), SCHEMA)
        pieces = [
            chunk.choices[0].delta.content or ""
            for chunk in ask(**fields, stream=True)
        ]
        validate(json.loads("".join(pieces)), SCHEMA)


def test_other_forms_as_extra_body(ask):
    for body, fits in (
        ({"regex": "[0-9]{4}"}, str.isdecimal),
        ({"choice": ["up", "größe"]}, ("up", "größe").__contains__),
        ({"grammar": 'root ::= "x"{3}'}, "xxx".__eq__),
    ):
        found = ask(extra_body=body, stop=["zzz"]).choices[0]
        assert fits(found.message.content) and found.finish_reason == "stop"


@pytest.mark.parametrize("stream", [False, True])
def test_a_bad_form_is_a_400_before_anything_is_sent(ask, server, stream):
    bad = format_of(obj(a={"type": "integer", "minimum": 1.5}))
    for fields, param, said in (
        ({"response_format": bad}, "schema", "at #/properties/a/minimum"),
        ({"extra_body": {"grammar": 'root ::= "a" x'}}, "grammar", "column 14"),
        ({"extra_body": {"regex": "a{,2}"}}, "regex", "position 3"),
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            ask(stream=stream, **fields)
        assert caught.value.param.endswith(param)
        assert said in caught.value.message


def test_calls_fit_their_schema_whole_and_streamed(ask):
    for choice in (
        "required",
        {"type": "function", "function": {"name": "weather"}},
    ):
        fields = {"tools": [WEATHER], "tool_choice": choice, "seed": 3}
        fields["parallel_tool_calls"] = False
        found = ask(**fields).choices[0]
        assert found.finish_reason == "tool_calls" and not found.message.content
        [call] = found.message.tool_calls
        assert call.function.name == "weather" and call.type == "function"
        validate(
            json.loads(call.function.arguments),
            WEATHER["function"]["parameters"],
        )
        arguments, names, reason = "", [], None
        for chunk in ask(**fields, stream=True):
            for delta in chunk.choices[0].delta.tool_calls or []:
                names += [delta.function.name] if delta.function.name else []
                arguments += delta.function.arguments
            reason = chunk.choices[0].finish_reason or reason
        assert (names, reason) == (["weather"], "tool_calls")
        assert arguments == call.function.arguments
        result = {"role": "tool", "tool_call_id": call.id, "content": "rain"}
        turns = [*ASK, found.message.model_dump(exclude_none=True), result]
        again = ask(messages=turns, tools=[WEATHER], max_tokens=5)
        assert again.choices[0].finish_reason in ("length", "stop")


@pytest.mark.parity
def test_plain_requests_are_as_before(ask, server):
    some = prompts("qwen3-tiny")[0]
    found = ask.client.completions.create(
        model=ask.model,
        prompt=some,
        max_tokens=16,
        temperature=0,
        logprobs=0,
        extra_body={"ignore_eos": True},
    )
    assert found.usage.completion_tokens == 16
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_under_test("qwen3-tiny"))
    expected = reference(model_under_test("qwen3-tiny"), some, 16)
    said = tokenizer.decode(expected.ids, skip_special_tokens=True)
    assert found.choices[0].text == said
    assert_parity(expected.ids, expected)


def test_only_the_scheduler_loads_torch(server):
    assert sum(has_torch(pid) for pid in server.children()) == 1
