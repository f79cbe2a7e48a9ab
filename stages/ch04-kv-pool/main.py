"""The pool fills: which request holds which page after every step."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[i]) for i in (2, 0)]

from by_hand import ByHand

from minisgl.core import Req
from tools.stagekit import load_tokenizer, model_path, run, transformers_answer

TOKENS, PAGES_OF_4 = 12, 24
TEXTS = {"A": "Pages fill up.", "B": "Who holds it?", "C": "Hi"}


def picture(engine: ByHand, names: dict[Req, str]) -> str:
    """A letter for every page that a request holds, in the order of the pool."""
    held, size = ["."] * engine.pages.num_pages, engine.pages.page_size
    for req, name in names.items():
        row = engine.ctx.page_table[req.table_idx, : req.cached_len]
        for page in (row // size).tolist():
            held[page] = name
    return "".join(held)


def main(
    model: str = "qwen3-tiny", page_size: int = 4, device: str = "cpu"
) -> None:
    """Three requests join one after the other; each asks for 12 tokens."""
    path, pages = model_path(model), PAGES_OF_4 * 4 // page_size
    engine = ByHand(path, pages, page_size, len(TEXTS), device)
    pool, tokenizer = engine.ctx.kv_cache, load_tokenizer(path)
    size = (pool.k_cache(0).nbytes + pool.v_cache(0).nbytes) * pool.num_layers
    print(f"pool: {pages} pages of {page_size} tokens, {size:,} bytes")
    print("\nbatch           pages held after it        cached tokens")
    waiting = {name: tokenizer(text).input_ids for name, text in TEXTS.items()}
    names: dict[Req, str] = {}
    for step in range(2 * len(TEXTS) + TOKENS):
        batch, phase = [req for req in names if req.can_decode], "decode"
        if step % 3 == 0 and waiting:
            name = next(iter(waiting))
            batch = [engine.join(waiting.pop(name), TOKENS)]
            names[batch[0]], phase = name, "prefill"
        engine.step(batch)
        label = f"{phase} {''.join(names[req] for req in batch)}"
        cached = [f"{name}{req.cached_len}" for req, name in names.items()]
        print(f"{label:15} {picture(engine, names)}  ", *cached)
    for req, name in names.items():
        row = engine.ctx.page_table[req.table_idx, : req.cached_len : page_size]
        print(f"\n{name}: pages", *(row // page_size).tolist())
        ids = req.input_ids.tolist()
        right = transformers_answer(path, ids[:-TOKENS], TOKENS, [], device)
        same = "= transformers" if ids[-TOKENS:] == right else "WRONG"
        print("   tokens", *ids[-TOKENS:], same)


if __name__ == "__main__":
    run(main)
