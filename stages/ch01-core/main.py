"""Two requests live through step 0's forward, side by side, step by step."""

import sys
from pathlib import Path
from runpy import run_path

STAGES = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(STAGES.parent))

import torch

from minisgl.core import Batch, Context, Req, SamplingParams, get_global_ctx
from tools.stagekit import model_path, run

Engine = run_path(str(STAGES / "ch00-step0" / "engine.py"))["Engine"]
ASKED = [([51, 258, 220, 447, 313], 6), ([54, 460, 30], 2)]  # ids, max_tokens


def make_batch(reqs: list[Req]) -> Batch:
    """What each request must compute next, one request after the other."""
    batch = Batch(reqs, "decode" if reqs[0].cached_len else "prefill")
    batch.input_ids = torch.cat([r.input_ids[r.cached_len :] for r in reqs])
    places = [torch.arange(r.cached_len, r.device_len) for r in reqs]
    batch.positions = torch.cat(places).int()
    return batch


def forward(engine: Engine, caches: list[dict]) -> list[torch.Tensor]:
    """Logits [V] of each request of the batch that the context holds."""
    batch = get_global_ctx().batch
    parts = batch.input_ids.split([req.extend_len for req in batch.reqs])
    pairs = zip(parts, batch.reqs, strict=True)
    return [engine.forward(p.tolist(), caches[r.uid]) for p, r in pairs]


@torch.inference_mode()
def main(model: str = "qwen3-tiny", device: str = "cpu") -> None:
    """Answer two prompts greedily in one loop."""
    engine = Engine(model_path(model), device, torch.float32)
    caches, ctx, running = [{}, {}], Context(), []
    for uid, (prompt, limit) in enumerate(ASKED):
        ids, params = torch.tensor(prompt), SamplingParams(max_tokens=limit)
        running.append(Req(ids.int(), uid, 0, limit, uid, params))
    print(*running, sep="\n")
    while running:
        batch = make_batch(running)
        print(f"\n{batch.phase}: ids", *batch.input_ids.tolist(), end="")
        print(", positions", *batch.positions.tolist())
        with ctx.forward_batch(batch):
            logits = forward(engine, caches)
        for req, row in zip(batch.reqs, logits, strict=True):
            req.complete_one()
            req.append_host(token := row.argmax().view(1).cpu().int())
            print(req, "token", *token.tolist(), "left", req.remain_len)
        running = [req for req in running if req.can_decode]


if __name__ == "__main__":
    run(main)
