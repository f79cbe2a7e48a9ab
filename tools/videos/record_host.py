"""What requests, batches and the radix tree of the films went through."""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import torch

from minisgl.core import Context, SamplingParams, set_global_ctx
from minisgl.kvcache.radix_cache import RadixPrefixCache
from minisgl.llm import LLM
from minisgl.message import DetokenizeMsg
from minisgl.tokenizer.detokenize import DetokenizeManager
from minisgl.tokenizer.text import load_light_tokenizer
from tests.driver import Driver
from tools.stagekit import encode_chat, load_tokenizer, model_path
from tools.videos.recorders import stage_file

QUESTION, MOST, PAGE = "What is 2+2?", 24, 16
ROWS = 4


def life() -> dict[str, Any]:
    """One question to SmolLM2: tokens, pages, steps, and pieces of text."""
    path = model_path("smollm2-135m")
    tokenizer = load_tokenizer(path)
    ids = encode_chat(tokenizer, QUESTION)
    llm = LLM(
        str(path),
        dtype="float32",
        device="cpu",
        overlap=False,
        page_size=PAGE,
        num_page_override=64,
    )
    steps = _note_steps(llm)
    params = SamplingParams(max_tokens=MOST, logprobs=3)
    answer = llm.generate([ids], params, progress=False)[0]
    first = answer["logprobs"][0]
    likeliest = zip(first.top_ids, first.top_logprobs, strict=True)
    return {
        "question": QUESTION,
        "model": "SmolLM2-135M-Instruct",
        "layers": llm.engine.ctx.kv_cache.num_layers,
        "vocabulary": llm.engine.sampler.vocab_size,
        "max_tokens": MOST,
        "page_size": PAGE,
        "prompt": [[t, tokenizer.decode([t])] for t in ids],
        "steps": steps,
        "likeliest": [
            [tokenizer.decode([token]), round(math.exp(logprob), 3)]
            for token, logprob in likeliest
        ],
        "pieces": _pieces(str(path), answer["token_ids"]),
        "text": answer["text"],
        "finish_reason": answer["finish_reason"],
        "kept_tokens": llm.cache_manager.prefix_cache.size_info.total_size,
    }


def _note_steps(llm: LLM) -> list[list[str | int]]:
    """Filled while it runs: phase, tokens and pages of each step."""
    steps: list[list[str | int]] = []
    run = llm.engine.forward_batch

    def noted(batch: Any, args: Any) -> Any:
        req = batch.reqs[0]
        row = llm.table_manager.page_table[req.table_idx, : req.device_len]
        pages = {int(slot) // PAGE for slot in row}
        steps.append([batch.phase, req.extend_len, len(pages)])
        return run(batch, args)

    llm.engine.forward_batch = noted  # type: ignore[method-assign]
    return steps


def _pieces(path: str, tokens: list[int]) -> list[str]:
    """The text that becomes certain with each token."""
    texts = DetokenizeManager(load_light_tokenizer(path))
    ends = [False] * (len(tokens) - 1) + [True]
    return [
        texts.detokenize([DetokenizeMsg(0, token, end)])[0]
        for token, end in zip(tokens, ends, strict=True)
    ]


ARRIVALS = {0: 1, 1: 1, 2: 1, 3: 4, 4: 5, 5: 10, 6: 11, 7: 26}
"""Chapter 7's: the step in which each request comes in."""

_TOGETHER = [dict.fromkeys(range(4), 1), dict.fromkeys(range(4, 8), 1)]


def batching() -> dict[str, Any]:
    """Chapter 7's eight requests, three ways; and a pool that is too small."""
    timeline = stage_file("ch07", "timeline")
    ways = {
        "one_by_one": [{uid: 1} for uid in ARRIVALS],
        "four_by_four": _TOGETHER,
        "join_and_leave": [ARRIVALS],
    }
    return {
        "arrivals": [*ARRIVALS.values()],
        "prompts": timeline.PROMPTS[: len(ARRIVALS)],
        "limits": timeline.LIMITS[: len(ARRIVALS)],
        "rows": ROWS,
        "steps": {n: _serve(timeline, groups) for n, groups in ways.items()},
        "admission": _admission(timeline),
    }


def _submit(driver: Driver, timeline: ModuleType, uid: int) -> None:
    message = timeline.message(uid)
    most = message.sampling_params.max_tokens
    driver.submit(uid, message.input_ids.tolist(), most)


def _serve(
    timeline: ModuleType, groups: list[dict[int, int]]
) -> list[list[str | int]]:
    """Each step of the groups, one after the other: its phase, then its requests."""
    driver = _driver(ROWS, 272)
    for group in groups:
        now = 1
        while now <= max(group.values()) or not driver.idle:
            for uid, step in group.items():
                if step == now:
                    _submit(driver, timeline, uid)
            driver.step()
            now += 1
    return [[step.phase, *sorted(step.tokens)] for step in driver.steps]


def _admission(timeline: ModuleType) -> dict[str, Any]:
    """Step by step: tokens that requests hold and may still ask for, and the queue."""
    pages = 96
    driver = _driver(8, pages)
    for uid in range(4):
        _submit(driver, timeline, uid)
    steps: list[dict[str, Any]] = []
    while not driver.idle:
        driver.step()
        scheduler = driver.scheduler
        running = scheduler.decode_manager.running_reqs
        waiting = [r.uid for r in scheduler.prefill_manager.pending_list]
        held = [[uid, req.cached_len] for uid, req in running.items()]
        steps.append({"held": held, "waiting": waiting})
    return {"pages": pages, "steps": steps}


def _driver(rows: int, pages: int) -> Driver:
    folder = model_path("qwen3-tiny")
    return Driver(
        folder,
        pages=pages,
        overlap=False,
        max_running_req=rows,
        cache_type="naive",
    )


def radix() -> dict[str, Any]:
    """A tree of words, snapshot by snapshot; and what it saves eight questions."""
    set_global_ctx(Context(page_size=1))
    cache = RadixPrefixCache(torch.device("cpu"))
    words: list[str] = []
    free, shots = [*range(40)], []

    def tokens(text: str) -> Any:
        for word in text.split():
            if word not in words:
                words.append(word)
        return torch.tensor([words.index(w) for w in text.split()]).int()

    def shot(what: str, **more: Any) -> None:
        shots.append({"what": what, **more, "nodes": _tree(cache, words)})

    def serve(text: str) -> Any:
        ids = tokens(text)
        known = cache.match_prefix(ids).cuda_handle
        old = known.get_matched_indices().tolist()
        new = [free.pop(0) for _ in range(len(ids) - len(old))]
        slots = torch.tensor(old + new).int()
        result = cache.insert_prefix(ids, slots)
        shot(text, known=len(old), computed=len(new), slots=new)
        return result.handle

    serve("You are helpful . What is KV ?")
    serve("You are helpful . What is a GPU ?")
    handle = serve("You are helpful . Say hello")
    cache.lock_handle(handle)
    shot("lock")
    freed = cache.evict(4).tolist()
    shot("evict", freed=freed)
    cache.lock_handle(handle, unlock=True)
    shot("unlock")
    return {"shots": shots, "questions": _questions()}


def _tree(cache: Any, words: list[str]) -> list[dict[str, Any]]:
    """The nodes below the root, parents first; a node's last slot names it."""
    found: list[dict[str, Any]] = []

    def walk(node: Any, parent: int | None) -> None:
        for child in sorted(
            node.children.values(), key=lambda n: int(n.value[0])
        ):
            name = int(child.value[0])
            found.append(
                {
                    "slots": child.value.tolist(),
                    "words": [words[i] for i in child._key.tolist()],
                    "parent": parent,
                    "locked": child.ref_count > 0,
                }
            )
            walk(child, name)

    walk(cache.root_node, None)
    return found


def _questions() -> dict[str, int]:
    """Chapter 9's workload of one system prompt, counted."""
    workloads = stage_file("ch09", "workloads")
    driver = Driver(model_path("qwen3-tiny"), pages=4096, overlap=False)
    for uid in range(8):
        prompt = [*workloads.SYSTEM, *workloads.ids(10 + uid, 16)]
        driver.submit(uid, prompt, workloads.ANSWER)
        driver.run()
    return {
        "requests": len(driver.prompts),
        "shared": len(workloads.SYSTEM),
        "asked": sum(map(len, driver.prompts.values())),
        "computed": sum(sum(s.tokens.values()) for s in driver.prefills()),
    }
