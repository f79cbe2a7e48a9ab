"""Speculative decoding against plain decoding, in turns, in one run.

First answers that repeat what was asked, then such that do not, each with and
without drafts of prompt lookup. Then what a step costs that checks so many drafts of
one request: computed as a part of that request, or with a row for every token.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import torch
import typer

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from minisgl.core import Req, SamplingParams
from minisgl.llm import LLM
from minisgl.scheduler.drafts import BaseDrafter, Draft
from minisgl.scheduler.verify import VerifyBatch
from tools.stagekit import encode_chat, load_tokenizer, model_path

TEXTS = [
    "The harbour master counted eleven boats on Monday, nine on Tuesday and none on "
    "Wednesday, when the storm came. He wrote each number into a green book, with "
    "the wind and the height of the water beside it. On Thursday two boats returned, "
    "both without their nets, and he gave their crews soup and dry socks.",
    "Dear Mrs. Albers, your parcel with the number 4471-B was handed to your "
    "neighbour, Mr. Okafor, at 14 Mill Lane on 3 March. If you have not received it "
    "by Friday, please call us at 555-0182 between 9 and 17 o'clock, and have the "
    "number of the parcel at hand. We apologise for the delay.",
    "The museum opens at nine in the morning and closes at six in the evening. "
    "Tickets cost eight euros for adults and four euros for children. Dogs must stay "
    "outside, but there is a shady place for them beside the gate, with fresh water.",
    "On the shelf in the kitchen stood a blue jar with sugar, a green jar with salt "
    "and a red jar with flour. One evening somebody put the salt into the blue jar, "
    "and the next morning the whole family drank coffee that nobody could forget.",
]
QUESTIONS = [
    "Why is the sky blue?",
    "What should I take along on a walk in the mountains?",
    "Tell me something about the history of bread.",
]
WIDTHS = (0, 1, 2, 4, 8, 16)


class Counting(LLM):
    """Counts the steps of its engine, and drafts that were right."""

    steps = accepted = rejected = 0

    def _launch(self, forward_input: Any) -> Any:
        self.steps += forward_input is not None
        return super()._launch(forward_input)

    def offline_send_result(self, reply: list[Any]) -> None:
        self.accepted += sum(msg.accepted_tokens or 0 for msg in reply)
        self.rejected += sum(msg.rejected_tokens or 0 for msg in reply)
        super().offline_send_result(reply)


class Constant(BaseDrafter):
    """Always guesses the same token, which is hardly ever right."""

    count = 0

    def propose(
        self, reqs: Sequence[Req], limits: Sequence[int]
    ) -> list[Draft]:
        return [Draft([11] * min(self.count, limit)) for limit in limits]

    def forget(self, req: Req) -> None:
        pass

    def reset(self) -> None:
        pass


def answer(llm: Counting, ids: list[int], most: int) -> tuple[float, list[int]]:
    """Seconds that an answer takes, and its tokens."""
    llm.cache_manager.prefix_cache.reset()
    llm._reset()
    begin = time.perf_counter()
    [found] = llm.generate(
        [ids], SamplingParams(max_tokens=most), progress=False
    )
    return time.perf_counter() - begin, found["token_ids"]


def compare(
    name: str,
    plain: Counting,
    drafting: Counting,
    prompts: list[list[int]],
    most: int,
) -> bool:
    """Print how both answer the prompts, one after the other; are they equal?"""
    seconds = [0.0, 0.0]
    tokens = equal = 0
    for llm in (plain, drafting):
        answer(llm, prompts[0], 8)
        llm.steps = llm.accepted = llm.rejected = 0
    for ids in prompts:
        found = []
        for i, llm in enumerate((plain, drafting)):
            spent, made = answer(llm, ids, most)
            seconds[i] += spent
            found.append(made)
        tokens += len(found[0])
        equal += found[0] == found[1]
    rates = [tokens / spent for spent in seconds]
    guessed = drafting.accepted + drafting.rejected
    print(
        f"{name:10}{tokens:7}{rates[0]:9.1f}{rates[1]:9.1f}"
        f"{rates[1] / rates[0]:8.2f} x{tokens / drafting.steps:9.2f}"
        f"{drafting.accepted:7} of {guessed:3}{equal:6} of {len(prompts)}"
    )
    return equal == len(prompts)


def cost(llm: Counting, ids: list[int], count: int, rows: bool) -> float:
    """Milliseconds of a step that checks so many drafts, of one request."""
    drafter, spent = Constant(), []
    drafter.count, llm.drafter = count, drafter
    launch, of = llm._launch, VerifyBatch.of

    def split(*args: Any) -> VerifyBatch:
        batch = of(*args)
        batch.run = batch
        return batch

    def timed(forward_input: Any) -> Any:
        begin = time.perf_counter()
        data = launch(forward_input)
        if data is None:  # the last turn of the loop
            return None
        data.output.copy_done_event.synchronize()
        spent.append(time.perf_counter() - begin)
        return data

    llm._launch = timed  # type: ignore[method-assign]
    try:
        if rows:
            VerifyBatch.of = split  # type: ignore
        answer(llm, ids, 20 + count)
    finally:
        VerifyBatch.of = of  # type: ignore[method-assign]
        del llm._launch
    return 1000 * median(spent[3:18])


def main(
    model: Annotated[
        str, typer.Option(help="A name, folder or id.")
    ] = "smollm2-135m",
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    dtype: Annotated[
        str, typer.Option(help="float32 or bfloat16.")
    ] = "float32",
    tokens: Annotated[int, typer.Option(help="Most drafts in a step.")] = 8,
    most: Annotated[int, typer.Option(help="Longest answer.")] = 96,
) -> None:
    """Print both tables."""
    folder = str(model_path(model))
    tokenizer = load_tokenizer(folder)
    settings: dict[str, Any] = {
        "device": device,
        "max_seq_len_override": 2048,
        "num_page_override": 4096,
        "max_running_req": 4,
    }
    plain = Counting(folder, dtype, **settings)
    drafting = Counting(
        folder,
        dtype,
        speculative="ngram",
        speculative_tokens=tokens,
        **settings,
    )
    repeat = "Repeat the following text word for word:\n\n"
    tasks: dict[str, Callable[[], list[str]]] = {
        "copying": lambda: [repeat + text for text in TEXTS],
        "free": lambda: QUESTIONS,
    }
    print(
        f"{model}, {dtype}, {device}, one request at a time, up to {tokens} drafts"
    )
    print(
        "task       tokens    plain   drafts   ratio  tokens/step  right      equal"
    )
    equal = True
    for name, questions in tasks.items():
        prompts = [encode_chat(tokenizer, text) for text in questions()]
        equal &= compare(name, plain, drafting, prompts, most)
    ids = (tokenizer(" ".join(TEXTS)).input_ids * 3)[:512]
    print("\nms of a step with 512 tokens before it")
    print("drafts   one request   a row each")
    for count in WIDTHS:
        found = [cost(drafting, ids, count, rows) for rows in (False, True)]
        print(f"{count:6}{found[0]:14.1f}{found[1]:13.1f}")
    if not equal:
        raise typer.Exit(1)


if __name__ == "__main__":
    with torch.inference_mode():
        typer.run(main)
