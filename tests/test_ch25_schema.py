"""Schemas and expressions: what passes the door is kept to, the rest is named."""

import json
import random
import time
from functools import cache

import pytest
import torch
import xgrammar as xgr
from jsonschema import Draft202012Validator

from minisgl.sampling_params import SamplingParams
from minisgl.server.formats import close_objects
from minisgl.structure.compile import json_grammar
from minisgl.structure.regex import check_regex
from minisgl.structure.schema import check_schema
from tools.structured_cases import CASES, many, obj

END = 256
STRING, WHOLE = {"type": "string"}, {"type": "integer"}


@cache
def compiler() -> xgr.GrammarCompiler:
    """Over a vocabulary of single bytes: a grammar is then a set of texts."""
    tokens = [*(bytes([i]) for i in range(256)), b""]
    raw = xgr.VocabType.RAW
    info = xgr.TokenizerInfo(tokens, raw, stop_token_ids=[END])
    return xgr.GrammarCompiler(info, max_threads=1, cache_enabled=False)


def compiled(schema) -> xgr.CompiledGrammar:
    check_schema(schema)
    grammar = xgr.Grammar.from_ebnf(json_grammar(xgr, json.dumps(schema)))
    return compiler().compile_grammar(grammar)


def takes(grammar: xgr.CompiledGrammar, text: str) -> bool:
    matcher = xgr.GrammarMatcher(grammar)
    return matcher.accept_string(text) and matcher.accept_token(END)


def drawn(
    grammar: xgr.CompiledGrammar, seed: int, limit: int = 4000
) -> str | None:
    """A random text of a grammar; None if it goes on and on."""
    rng, matcher, found = random.Random(seed), xgr.GrammarMatcher(grammar), []
    mask = torch.empty(1, 9, dtype=torch.int32)
    while len(found) < limit:
        matcher.fill_next_token_bitmask(mask)
        bits = (mask.view(-1, 1) >> torch.arange(32)) & 1
        allowed = bits.flatten().nonzero().flatten().tolist()
        # Of the many letters of a string only a few, and its end often.
        plain = [t for t in allowed if not 35 <= t < 91 and t < 120]
        token = rng.choice([*plain, *rng.sample(allowed, 1)])
        matcher.accept_token(token)
        if token == END:
            return bytes(found).decode()
        found.append(token)
    return None


@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
def test_whatever_is_drawn_is_valid(case):
    schema = case[1]
    grammar, validator = compiled(schema), Draft202012Validator(schema)
    texts = [drawn(grammar, seed) for seed in range(12)]
    whole = [text for text in texts if text is not None]
    assert len(whole) > 6
    for text in whole:
        validator.validate(json.loads(text))


KEPT = [  # a schema, what fits, what does not
    ({"type": ["integer", "null"], "minimum": 5}, "5", "4"),
    ({"type": "integer", "exclusiveMinimum": 5}, "6", "5"),
    ({"type": "number", "exclusiveMaximum": 1}, "0.5", "1"),
    ({"type": "integer", "multipleOf": 7, "minimum": 1}, "14", "0"),
    ({"type": "string", "minLength": 2}, '"日本"', '"日"'),
    ({"type": "string", "pattern": "^[^b]+$"}, '"ac"', '"a"b"'),
    ({"type": "array", "items": WHOLE, "minItems": 1}, "[1]", "[]"),
    ({"type": "array", "items": False}, "[]", "[1]"),
    ({"enum": ["a", 1.5, None]}, "1.5", "2"),
    ({"type": "string", "enum": ["a"]}, '"a"', '"b"'),
    ({"oneOf": [STRING, WHOLE]}, "3", "null"),
    ({"allOf": [STRING]}, '"a"', "1"),
    (
        obj(a={"$ref": "#/$defs/n~1m"}) | {"$defs": {"n/m": WHOLE}},
        '{"a": 1}',
        "{}",
    ),
    (
        obj(a={"anyOf": [{"type": "null"}, {"$ref": "#"}]}),
        '{"a": {"a": null}}',
        '{"a": 1}',
    ),
    (
        {"type": "object", "additionalProperties": WHOLE},
        '{"x": 1}',
        '{"x": ""}',
    ),
    ({"type": "object", "properties": {"a": WHOLE}}, '{"b": ""}', '{"a": ""}'),
    ({"type": "object", "maxProperties": 1}, '{"a": 1}', '{"a": 1, "b": 2}'),
    (True, "[1]", "x"),
]


@pytest.mark.parametrize(("schema", "good", "bad"), KEPT)
def test_what_passes_is_kept_to(schema, good, bad):
    grammar = compiled(schema)
    assert takes(grammar, good) and not takes(grammar, bad)


REFUSED = [
    ("#/type", {"type": "text"}),
    ("#/type", {"type": 3}),
    ("#/properties/a/type", obj(a={"type": "str"})),
    (
        "#/properties/a~1b~0c/minLenght",
        obj(**{"a/b~c": STRING | {"minLenght": 1}}),
    ),
    ("#/items/not", {"type": "array", "items": {"not": WHOLE}}),
    ("#/minimum", {"minimum": 1}),
    ("#/minimum", STRING | {"minimum": 1}),
    ("#/minimum", WHOLE | {"minimum": 1.5}),
    ("#/minimum", WHOLE | {"minimum": 2**60}),
    ("#/minimum", WHOLE | {"minimum": 3, "maximum": 2}),
    ("#/multipleOf", {"type": "number", "multipleOf": 0.5}),
    ("#/minLength", STRING | {"minLength": -1}),
    ("#/minLength", STRING | {"minLength": 3, "maxLength": 2}),
    ("#/minLength", STRING | {"minLength": None, "maxLength": 2}),
    ("#/maxItems", {"type": "array", "maxItems": None}),
    ("#/maxLength", STRING | {"pattern": "a", "maxLength": 2}),
    ("#/format", STRING | {"format": "colour"}),
    ("#/pattern", STRING | {"pattern": "(a"}),
    ("#/pattern", STRING | {"pattern": 'say "a"'}),
    ("#/pattern", STRING | {"pattern": ["a"]}),
    ("#/pattern", STRING | {"pattern": "^[^é]$"}),
    ("#/uniqueItems", {"type": "array", "uniqueItems": True}),
    ("#/items", {"type": "array", "items": [WHOLE]}),
    ("#/contains", {"type": "array", "contains": WHOLE}),
    (
        "#/maxItems",
        {"type": "array", "prefixItems": [WHOLE] * 2, "maxItems": 1},
    ),
    ("#/required/1", obj(a=WHOLE) | {"required": ["a", "b"]}),
    ("#/required", obj(a=WHOLE) | {"required": "a"}),
    ("#/patternProperties", {"type": "object", "patternProperties": {}}),
    ("#/minProperties", {"type": "object", "minProperties": 2}),
    ("#/properties/a", obj(a=False)),
    ("#/properties/a", obj(a=5)),
    ("#/enum", {"enum": []}),
    ("#/enum/1", {"type": "string", "enum": ["a", 1]}),
    ("#/const", {"const": 2**70}),
    ("#/minLength", {"enum": ["a"], "minLength": 3}),
    ("#/anyOf/1/type", {"anyOf": [WHOLE, {"type": "x"}]}),
    ("#/required", {"anyOf": [WHOLE], "required": ["a"]}),
    ("#/allOf", {"allOf": [WHOLE, WHOLE]}),
    ("#/oneOf/1", {"oneOf": [WHOLE, {"type": "number"}]}),
    ("#/oneOf/1", {"oneOf": [obj(a=WHOLE), obj(a={"const": 1})]}),
    ("#/$ref", {"$ref": "#/$defs/x"}),
    ("#/$ref", {"$ref": "https://example.com/schema"}),
    ("#/$ref", {"$ref": "#"}),
    ("#/minimum", {"$ref": "#/$defs/n", "$defs": {"n": WHOLE}, "minimum": 1}),
    (
        "#/$defs/n/foo",
        {"$ref": "#/$defs/n", "$defs": {"n": WHOLE | {"foo": 1}}},
    ),
]


@pytest.mark.parametrize(("place", "schema"), REFUSED)
def test_what_cannot_be_kept_to_is_named_by_its_place(place, schema):
    with pytest.raises(ValueError, match=r"^at #") as caught:
        check_schema(schema)
    assert str(caught.value).startswith(f"at {place}: ")
    with pytest.raises(ValueError, match=r"^json_schema: at #/"):
        SamplingParams(json_schema=json.dumps(schema))


def test_notes_and_neutral_values_pass():
    notes = {"title": "t", "description": "d", "default": 1, "x-order": 2}
    check_schema(WHOLE | notes | {"$schema": "s", "examples": [1]})
    check_schema({"type": "array", "uniqueItems": False})
    deep = WHOLE
    for _ in range(200):
        deep = {"type": "array", "items": deep}
    with pytest.raises(ValueError, match="deeper than"):
        check_schema(deep)


def nested(levels: int) -> list:
    found: list = []
    for _ in range(levels):
        found = [found]
    return found


def pair(name: str) -> dict:
    """An object with two of itself."""
    return obj(x={"$ref": f"#/$defs/{name}"}, y={"$ref": f"#/$defs/{name}"})


OPEN = {"type": "object", "properties": {f"p{i}": STRING for i in range(600)}}
CHAIN = {str(i): many({"$ref": f"#/$defs/{i + 1}"}, 1) for i in range(500)}
BACK = {"oneOf": [{"$ref": "#"}, obj(y=WHOLE)]}


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        # Two that go on for ever: twice as many to compare at every level.
        (
            {"oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}]}
            | {"$defs": {"a": pair("a"), "b": pair("b")}},
            "#/oneOf: too much",
        ),
        ({"oneOf": [{"const": i} for i in range(2000)]}, "#/oneOf: too much"),
        ({"enum": [nested(1500)]}, "#: deeper than"),
        (WHOLE | {"x-note": nested(1500)}, "#: deeper than"),
        (
            {"$ref": "#/$defs/0", "$defs": CHAIN | {"500": WHOLE}},
            "#: references lead too deep",
        ),
        (WHOLE | {"title": "t" * 70000}, "#: more than 65536"),
        (OPEN, "#/properties: only 512"),
        (
            obj(**{f"p{i}": WHOLE for i in range(40)}) | {"maxProperties": 20},
            "#/properties: only 32",
        ),
        # Compared before they are checked, these would be taken for good.
        (obj(x=BACK, y=5), "#/properties/y: a schema"),
        (obj(x=BACK, y=WHOLE) | {"required": [["y"]]}, "#/required/0"),
    ],
)
def test_no_schema_keeps_the_door_busy_or_breaks_it(schema, said):
    begin = time.perf_counter()
    with pytest.raises(ValueError, match=f"^at {said}"):
        check_schema(schema)
    assert time.perf_counter() - begin < 3.0


def test_many_schemas_can_be_told_apart():
    kinds = [obj(kind={"const": f"k{i}"}, x=WHOLE) for i in range(100)]
    check_schema({"oneOf": kinds})
    values = [{"enum": [*range(i, i + 800)]} for i in (0, 800, 1600)]
    check_schema({"oneOf": values})


def test_strict_closes_what_is_open():
    inner = {"type": "object", "properties": {"properties": STRING}}
    schema = obj(a={"anyOf": [inner, {"type": "array"}]})
    closed = close_objects(schema)
    branches = closed["properties"]["a"]["anyOf"]
    assert branches[0] == inner | {"additionalProperties": False}
    assert branches[1] == {"type": "array"}
    assert "additionalProperties" not in inner
    for unread in ({"$defs": [1]}, {"x-note": {"properties": 5}}):
        check_schema(STRING | unread)
        assert close_objects(STRING | unread)["type"] == "string"
    text = '{"a": {"properties": "", "b": 1}}'
    assert takes(compiled(schema), text) and not takes(compiled(closed), text)


@pytest.mark.parametrize(
    "pattern",
    [
        "[0-9]{3}",
        "^a|b$",
        r"\d+\.\d*",
        "(?:ab)+",
        r"[\]a]",
        r"[^\]\"]",
        "é|日本",
        "a*?",
    ],
)
def test_expressions_that_can_be_matched(pattern):
    check_regex(pattern)
    xgr.Grammar.from_regex(pattern)


@pytest.mark.parametrize(
    ("pattern", "at"),
    [
        ("(a|b", 0),
        ("a**", 2),
        ("[z-a]", 1),
        (r"a(?=b)", 1),
        (r"(a)\1", 3),
        (r"\bword", 0),
        (r"\Aa", 0),
        ("(?i)a", 0),
        ("(?P<x>a)", 0),
        ("a^b", 1),
        ("(a$)b", 2),
        ("[[:alpha:]]", 1),
        ("a[]b]", 1),
        (r"\p{L}", 0),
    ],
)
def test_expressions_that_cannot_say_where(pattern, at):
    with pytest.raises(ValueError, match=rf"at position {at}\b"):
        check_regex(pattern)
    with pytest.raises(ValueError, match=r"^regex: "):
        SamplingParams(regex=pattern)


def test_a_long_expression_is_refused_before_it_is_read():
    begin = time.perf_counter()
    with pytest.raises(ValueError, match="regex: longer than 4096"):
        SamplingParams(regex="(?:" * 90 + "a" * 60_000 + ")" * 90)
    assert time.perf_counter() - begin < 1.0


def test_only_one_form_and_none_that_is_empty():
    with pytest.raises(
        ValueError, match="regex cannot stand beside json_schema"
    ):
        SamplingParams(json_schema="{}", regex="a")
    for fields in (
        {"choice": []},
        {"choice": [""]},
        {"choice": "a"},
        {"grammar": ""},
    ):
        with pytest.raises(ValueError, match=f"^{next(iter(fields))} must be"):
            SamplingParams(**fields)
    with pytest.raises(ValueError, match="at most 65536 characters, got 70000"):
        SamplingParams(grammar="x" * 70000)
    with pytest.raises(ValueError, match="json_schema: not JSON"):
        SamplingParams(json_schema="{")
    with pytest.raises(ValueError, match=r"json_schema .*; use json.dumps"):
        SamplingParams(json_schema={"type": "object"})
    for bad in (
        "{",
        "[]",
        '{"schemas": {}}',
        '{"schemas": {"f": {"type": 1}}}',
    ):
        with pytest.raises(ValueError, match=r"^tool_calls: "):
            SamplingParams(tool_calls=bad)
    assert SamplingParams(choice=["a"]).form == ("choice", '["a"]')
    assert SamplingParams().form is None
