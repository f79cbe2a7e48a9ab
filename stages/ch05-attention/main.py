"""Mixed batches: one request in prefill while others decode, and their groups."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[i]) for i in (2, 0)]

from by_hand import ByHand

from minisgl.core import Req
from tools.stagekit import load_tokenizer, model_path, run

TOKENS, SLOTS = 8, 512
TEXTS = {
    "A": "Three requests share one batch.",
    "B": "Hi",
    "C": "Who pads, and what does it cost?",
}


def main(
    model: str = "qwen3-tiny", page_size: int = 4, device: str = "cpu"
) -> None:
    """A request joins in every second step; then each is asked alone."""
    path = model_path(model)
    engine = ByHand(path, SLOTS // page_size, page_size, 6, device)
    tokenizer = load_tokenizer(path)
    waiting = {name: tokenizer(text).input_ids for name, text in TEXTS.items()}
    prompts, names, read, held = dict(waiting), dict[Req, str](), 0, 0
    print("new/all tokens of each request     groups as requests x new / slots")
    for step in range(2 * len(TEXTS) + TOKENS - 2):
        batch = [req for req in names if req.can_decode]
        if step % 2 == 0 and waiting:
            name = next(iter(waiting))
            batch.append(engine.join(waiting.pop(name), TOKENS))
            names[batch[-1]] = name
        spans = [f"{names[r]} {r.extend_len}/{r.device_len}" for r in batch]
        held += sum(req.device_len for req in batch)
        found = []
        for group in engine.step(batch).attn_metadata.groups:
            b, m = group.slots.shape
            n = (group.rows.stop - group.rows.start) // b
            read += b * m
            found.append(f"{b} x {n} / {b * m}")
        print(f"{'  '.join(spans):33}  {'   '.join(found)}")
    print(
        f"\nslots gathered {read}, tokens held {held}: {read - held} padding\n"
    )
    for req, name in names.items():
        alone = engine.join(prompts[name], TOKENS)
        while alone.can_decode:
            engine.step([alone])
        answer, other = (r.input_ids[-TOKENS:].tolist() for r in (req, alone))
        print(f"{name}:", *answer, "= alone" if answer == other else "WRONG")


if __name__ == "__main__":
    run(main)
