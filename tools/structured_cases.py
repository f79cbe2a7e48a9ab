"""Twenty-five schemas of growing difficulty, each with a question."""

from typing import Any

Case = tuple[str, dict[str, Any], str]


def obj(**properties: Any) -> dict[str, Any]:
    """An object that has exactly these properties."""
    return {
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "additionalProperties": False,
    }


def text(most: int = 24, least: int = 0) -> dict[str, Any]:
    return {"type": "string", "minLength": least, "maxLength": most}


def whole(low: int, high: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": low, "maximum": high}


def many(items: Any, most: int, least: int = 0) -> dict[str, Any]:
    return {
        "type": "array",
        "items": items,
        "minItems": least,
        "maxItems": most,
    }


YES = {"type": "boolean"}
NOTHING = {"type": "null"}
ADDRESS = obj(street=text(), number=whole(1, 999), city=text(16))
PERSON = obj(name=text(20), age=whole(0, 120), address=ADDRESS)
TREE = {
    "$defs": {
        "node": obj(
            value=whole(0, 9),
            next={"anyOf": [{"$ref": "#/$defs/leaf"}, NOTHING]},
        ),
        "leaf": obj(value=whole(0, 9)),
    },
    "$ref": "#/$defs/node",
}
SHAPES = {
    "oneOf": [
        obj(kind={"const": "circle"}, radius=whole(1, 50)),
        obj(kind={"const": "square"}, side=whole(1, 50)),
    ]
}

CASES: list[Case] = [
    ("boolean", YES, "Is water wet?"),
    ("integer", whole(0, 20), "How many legs has a dog?"),
    ("enum", {"enum": ["red", "green", "blue"]}, "The colour of grass?"),
    ("short string", text(12, 3), "Name a fruit."),
    ("constant", {"const": {"ok": True, "code": 7}}, "Is all well?"),
    ("number range", {"type": "number", "minimum": 0.5, "maximum": 1.5}, "Pi/3?"),
    ("flat object", obj(city=text(16), country=text(16)), "Where is Paris?"),
    (
        "optional keys",
        obj(name=text(16)) | {"properties": {"name": text(16), "nick": text(8)}},
        "Who was Lincoln?",
    ),
    ("nullable", obj(winner={"type": ["string", "null"], "maxLength": 9}), "Won?"),
    ("array of enums", many({"enum": ["N", "S", "E", "W"]}, 4, 1), "Directions?"),
    ("array of numbers", many(whole(1, 49), 6, 6), "Draw the lottery."),
    ("date", obj(day={"type": "string", "format": "date"}), "When was D-Day?"),
    (
        "pattern",
        obj(phone={"type": "string", "pattern": "^[0-9]{3}-[0-9]{4}$"}),
        "Give a phone number.",
    ),
    ("steps of five", obj(score=whole(0, 100) | {"multipleOf": 5}), "Your score?"),
    ("unicode enum", obj(wort={"enum": ["größe", "naïve", "日本", "🎉"]}), "Wort?"),
    ("unicode keys", obj(**{"имя": text(10), "夏": YES}), "Name and summer?"),
    ("negative range", obj(celsius=whole(-60, -5)), "How cold is Siberia?"),
    ("nested", PERSON, "Describe a person who lives in London."),
    ("array of objects", many(obj(name=text(12), qty=whole(1, 9)), 3, 2), "Shop?"),
    ("tuple", {"type": "array", "prefixItems": [text(8), whole(0, 9)], "items": False,
               "minItems": 2}, "A word and a digit?"),
    ("union", {"anyOf": [obj(error=text(20)), obj(result=whole(0, 99))]}, "2+2?"),
    ("discriminated union", many(SHAPES, 2, 1), "Draw two shapes."),
    ("references", TREE, "Make a list of two numbers."),
    (
        "map",
        obj(scores={"type": "object", "additionalProperties": whole(0, 9),
                    "maxProperties": 2}),
        "Scores of the teams?",
    ),
    (
        "all of it",
        obj(
            title=text(20, 1),
            people=many(PERSON, 2, 1),
            tags=many({"enum": ["ä", "b", "c"]}, 3),
            rating={"type": "number", "minimum": 0, "maximum": 5},
            flags=obj(open=YES, note={"type": ["string", "null"], "maxLength": 8}),
        ),
        "Describe a meeting of two people.",
    ),
]  # fmt: skip
"""Name, schema, question."""
