"""JSON from a small model: is it valid, and what does the grammar cost?

Part one: answers to 25 schemas, checked by the `jsonschema` package. Part two: the same
prompts to the same length with a form and without, turn by turn in one run, and what a
step spends on masks.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
import typer
from jsonschema import Draft202012Validator

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from minisgl.core import SamplingParams
from minisgl.engine.constrain import GrammarProcessor
from minisgl.llm import LLM
from tools.stagekit import encode_chat, model_path, run
from tools.structured_cases import CASES, Case, obj, text, whole

ASK = "{} Answer with JSON of this schema: {}"
ROWS, LENGTH = 8, 64
FORM = {"type": "array", "items": obj(name=text(20), age=whole(0, 120))}


def problem(case: Case, result: dict[str, Any]) -> str | None:
    """What is wrong with an answer; None if it is valid."""
    if result["finish_reason"] != "stop":
        return f"ended with {result['finish_reason']}: {result['error']}"
    try:
        Draft202012Validator(case[1]).validate(json.loads(result["text"]))
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return None


def answers(llm: LLM, temperature: float = 0.0) -> list[dict[str, Any]]:
    """What the model says to every case."""
    prompts, params = [], []
    for _, schema, question in CASES:
        asked = ASK.format(question, json.dumps(schema, ensure_ascii=False))
        prompts.append(encode_chat(llm.tokenizer, asked))
        params.append(
            SamplingParams(
                temperature,
                max_tokens=400,
                seed=1,
                json_schema=json.dumps(schema),
            )
        )
    return llm.generate(prompts, params, progress=False)


def show_answers(llm: LLM) -> None:
    for temperature in (0.0, 1.0):
        found = answers(llm, temperature)
        wrong = 0
        print(f"temperature {temperature:g}")
        for case, result in zip(CASES, found, strict=True):
            reason = problem(case, result)
            wrong += reason is not None
            said = (
                result["text"]
                if len(result["text"]) < 60
                else (result["text"][:56] + " ...")
            )
            print(
                f"  {case[0]:20} {'ok' if reason is None else reason:6} {said}"
            )
        print(f"  valid: {len(CASES) - wrong} of {len(CASES)}")


def tokens_a_second(llm: LLM, constrained: int) -> float:
    """Of ROWS answers of LENGTH tokens, so many of which have a form."""
    prompt = encode_chat(
        llm.tokenizer, "List people with name and age, as JSON."
    )
    free = SamplingParams(max_tokens=LENGTH, ignore_eos=True)
    bound = SamplingParams(
        max_tokens=LENGTH, ignore_eos=True, json_schema=json.dumps(FORM)
    )
    params = [bound] * constrained + [free] * (ROWS - constrained)
    start = time.perf_counter()
    found = llm.generate([prompt] * ROWS, params, progress=False)
    spent = time.perf_counter() - start
    assert all(len(answer["token_ids"]) == LENGTH for answer in found)
    return ROWS * LENGTH / spent


def show_speed(llm: LLM, rounds: int) -> None:
    shares = (0, 1, ROWS // 2, ROWS)
    for count in shares:
        tokens_a_second(llm, count)  # compiles, and warms up
    spent: list[float] = []
    watch(llm, spent)
    speeds: dict[int, list[float]] = {count: [] for count in shares}
    masks: dict[int, float] = {}
    for _ in range(rounds):
        for count in shares:
            spent.clear()
            speeds[count].append(tokens_a_second(llm, count))
            masks[count] = median(spent) if spent else 0.0
    print(f"\n{ROWS} requests of {LENGTH} tokens, median of {rounds} rounds")
    print(
        f"{'with a form':>12} {'tokens/s':>9} {'of none':>8} {'mask a step':>12}"
    )
    base = median(speeds[0])
    for count in shares:
        speed = median(speeds[count])
        share = f"{100 * speed / base:.1f}%"
        spent_us = f"{1e6 * masks[count]:.0f} us"
        print(f"{count:12} {speed:9.1f} {share:>8} {spent_us:>12}")


def watch(llm: LLM, spent: list[float]) -> None:
    """Note how long the edits of the grammars take."""
    processors = llm.engine.sampler.processors
    for i, processor in enumerate(processors):
        if isinstance(processor, GrammarProcessor):
            processors[i] = _timed(processor, spent)


def _timed(processor: GrammarProcessor, spent: list[float]) -> Any:
    def timed(batch: Any) -> Any:
        edit = processor(batch)
        if edit is None:
            return None

        def clocked(logits: torch.Tensor) -> torch.Tensor:
            start = time.perf_counter()
            result = edit(logits)
            spent.append(time.perf_counter() - start)
            return result

        return clocked

    return timed


def main(
    model: str = "smollm2-135m",
    rounds: int = typer.Option(3, help="How often each share is measured."),
    device: str = "cpu",
    dtype: str = "float32",
    speed: bool = True,
) -> None:
    """Print validity and throughput."""
    llm = LLM(
        str(model_path(model)), dtype, device=device, num_page_override=16384
    )
    show_answers(llm)
    if speed:
        show_speed(llm, rounds)


if __name__ == "__main__":
    run(main)
