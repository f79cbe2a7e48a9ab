"""Ask a model of 135 million parameters for a form: free, then held to it."""

import json
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[i]) for i in (2, 0)]

from minisgl.core import SamplingParams
from minisgl.llm import LLM
from minisgl.structure.tags import ToolGrammar
from tools.stagekit import encode_chat, model_path, run
from tools.structured_cases import many, obj, text, whole

PERSON = obj(name=text(12), age=whole(0, 120), likes=many(text(10), 2, 1))
BAD = obj(age={"type": "integer", "not": {"const": 13}})
PHONE = "[0-9]{3}-[0-9]{4}"
MOVES = 'root ::= move " " move\nmove ::= [a-h] [1-8]'
WEATHER = ToolGrammar({"weather": obj(city=text(12))}, True, False)
ASKED = {
    "json_schema": ("Invent a person, as JSON.", json.dumps(PERSON)),
    "regex": ("What is your phone number?", PHONE),
    "choice": ("Is the sea salty?", ["yes", "no", "it depends"]),
    "grammar": ("Open a game of chess.", MOVES),
    "tool_calls": ("What is the weather in Oslo?", WEATHER.to_json()),
}


def shown(answer: dict[str, object]) -> str:
    """On one line, and how it ended."""
    said = json.dumps(str(answer["text"])[:76], ensure_ascii=False)
    return f"{said} ({answer['finish_reason']})"


def main(model: str = "smollm2-135m") -> None:
    """Five questions, each without a form and with one, in one batch."""
    llm = LLM(str(model_path(model)), "float32", device="cpu")
    prompts = [encode_chat(llm.tokenizer, asked) for asked, _ in ASKED.values()]
    free = [SamplingParams(max_tokens=16)] * len(prompts)
    alone = llm.generate(prompts, free, progress=False)
    held = [
        SamplingParams(max_tokens=80, **{name: form})
        for name, (_, form) in ASKED.items()
    ]
    found = llm.generate(prompts * 2, [*free, *held], progress=False)
    count = len(prompts)
    for i, name in enumerate(ASKED):
        print(f"{name}\n  free: {shown(found[i])}")
        print(f"  held: {shown(found[count + i])}")
    same = all(
        a["token_ids"] == b["token_ids"]
        for a, b in zip(alone, found, strict=False)
    )
    print("\nfree answers are as without neighbours:", "yes" if same else "no")
    try:
        SamplingParams(json_schema=json.dumps(BAD))
    except ValueError as error:
        print("refused:", error)
    broken = SamplingParams(max_tokens=8, grammar='root ::= "a" moev')
    [answer] = llm.generate(prompts[:1], broken, progress=False)
    print("refused:", answer["error"])


if __name__ == "__main__":
    run(main)
