"""Fused kernels beside what they stand for; run as a program, under the interpreter.

`python tests/fused.py` prints one JSON object. TRITON_INTERPRET=1 must be set before
triton is imported, so a test starts it as a process of its own.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))

from minisgl.attention.stored import AttendsStored  # noqa: E402
from minisgl.attention.torch_backend import TorchBackend  # noqa: E402
from minisgl.engine.sample import FAILED_TOKEN, sample_impl  # noqa: E402
from minisgl.kernel.fused import draw_rows, norm_rope  # noqa: E402
from minisgl.layers import RMSNorm  # noqa: E402
from minisgl.layers.rotary import get_rope  # noqa: E402

SIZES = [(1, 17), (5, 4096), (7, 4097), (64, 9000)]
ROPES = [(1, 4, 2, 64), (33, 16, 8, 128), (9, 3, 1, 32)]
"""Tokens, heads of q, heads of k, size of a head."""


def drawn(device: str, rows: int, vocab: int, seed: int = 0) -> dict[str, Any]:
    """Tokens of the kernel and of `sample_impl`, and the best ones."""
    make = torch.Generator().manual_seed(seed)
    logits = (3 * torch.randn(rows, vocab, generator=make)).to(device)
    temperatures = (0.2 + torch.rand(rows, generator=make)).to(device)
    uniforms = torch.rand(rows, generator=make).to(device)
    greedy = torch.zeros_like(temperatures)
    args = (logits, temperatures, uniforms)
    expected = sample_impl(logits, temperatures, None, None, None, uniforms)
    return {
        "got": draw_rows(*args, FAILED_TOKEN).tolist(),
        "expected": expected.tolist(),
        "greedy": draw_rows(logits, greedy, uniforms, FAILED_TOKEN).tolist(),
        "best": logits.argmax(-1).tolist(),
    }


def edges(device: str) -> dict[str, list[int]]:
    """Rows that are no numbers, are masked, or meet the ends of [0, 1)."""
    vocab = 5000
    logits = torch.zeros(6, vocab)
    logits[0, 4999] = float("nan")
    logits[1, 3] = float("inf")
    logits[2] = -float("inf")
    logits[3] = -float("inf")
    logits[3, 4711] = -2.0
    logits[4, :] = -float("inf")
    logits[4, 100:103] = 1.0
    logits[5, 4098] = 90.0
    uniforms = torch.tensor([0.5, 0.5, 0.5, 0.999, 1 - 2**-24, 0.5])
    ones = torch.ones(6)
    arguments = [x.to(device) for x in (logits, ones, uniforms)]
    cold = [arguments[0], 1e-6 * arguments[1], arguments[2]]
    return {
        "warm": draw_rows(*arguments, FAILED_TOKEN).tolist(),
        "cold": draw_rows(*cold, FAILED_TOKEN).tolist(),
    }


def counts(device: str, draws: int) -> list[int]:
    """How often each of 4 tokens with chances 1:2:3:4 comes."""
    logits = torch.arange(1.0, 5.0).log().expand(draws, 4).contiguous()
    make = torch.Generator().manual_seed(1)
    uniforms = torch.rand(draws, generator=make).to(device)
    ones = torch.ones(draws, device=device)
    tokens = draw_rows(logits.to(device), ones, uniforms, FAILED_TOKEN)
    return torch.bincount(tokens.long(), minlength=4).tolist()


def projected(
    device: str, make: torch.Generator, tokens: int, heads: int, dim: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Heads of q, k and v, and positions; all as a projection gives them."""
    # As a part of a larger product: rows lie apart.
    wide = torch.randn(tokens, heads * dim + 8, generator=make).to(device)
    positions = torch.randint(0, 500, (tokens,), generator=make).to(device)
    return wide[:, : heads * dim], positions


def rotated(device: str, tokens: int, q: int, k: int, dim: int) -> float:
    """The largest difference of the kernel from norm, then rotation."""
    make = torch.Generator().manual_seed(tokens)
    qkv, positions = projected(device, make, tokens, q + 2 * k, dim)
    norms = []
    for _ in range(2):
        norms.append(RMSNorm(dim, 1e-6))
        norms[-1].weight = torch.randn(dim, generator=make).to(device)
    rope = get_rope(dim, dim, 512, 10000.0)
    table = rope._cos_sin_cache = rope._cos_sin_cache.to(device)
    weights = norms[0].weight, norms[1].weight
    got = norm_rope(qkv, positions, table, weights, (q, k), 1e-6)
    parts = qkv.split([q * dim, k * dim, k * dim], dim=-1)
    both = [
        norm.forward(part.reshape(tokens, -1, dim)).flatten(1)
        for norm, part in zip(norms, parts, strict=False)
    ]
    expected = rope.forward(positions, *both)
    pairs = zip(got, expected, strict=True)
    return max((g.flatten(1) - e).abs().max().item() for g, e in pairs)


def stored(device: str, tokens: int, q: int, k: int, dim: int) -> bool:
    """Whether what is stored on the way is what is returned otherwise."""
    make = torch.Generator().manual_seed(tokens + 1)
    qkv, positions = projected(device, make, tokens, q + 2 * k, dim)
    weights = torch.randn(2, dim, generator=make).to(device)
    table = get_rope(dim, dim, 512, 10000.0)._cos_sin_cache.to(device)
    rows = torch.randperm(tokens + 9, generator=make)[:tokens]
    rows = rows.to(device, torch.int32)
    pool = torch.full((2, tokens + 9, k, dim), 7.0, device=device)
    args = (qkv, positions, table, (weights[0], weights[1]), (q, k), 1e-6)
    queries, keys = norm_rope(*args)
    expected = pool.clone()
    expected[0, rows] = keys
    expected[1, rows] = qkv[:, -k * dim :].reshape(tokens, k, dim)
    got, nothing = norm_rope(*args, (pool[0], pool[1], rows))
    equal = torch.equal(got, queries) and torch.equal(pool, expected)
    return equal and nothing.numel() == 0


def everything(device: str) -> dict[str, Any]:
    """All of it, as JSON takes it."""
    return {
        "drawn": [drawn(device, *size) for size in SIZES],
        "edges": edges(device),
        "counts": counts(device, 500 if device == "cpu" else 100_000),
        "rotated": [rotated(device, *shape) for shape in ROPES],
        "stored": [stored(device, *shape) for shape in ROPES],
    }


class Stored(TorchBackend, AttendsStored):
    """Attends to what a layer's kernel has put into the pool."""

    asked = 0

    def attend(self, q: Any, layer_id: int, batch: Any) -> Any:
        Stored.asked += 1
        pool, rows = self._ctx.kv_cache, batch.out_loc
        k = pool.k_cache(layer_id).flatten(0, 1)[rows]
        v = pool.v_cache(layer_id).flatten(0, 1)[rows]
        return self.forward(q, k, v, layer_id, batch)


def answers(
    folder: str, prompts: list[list[int]], stores: bool
) -> dict[str, Any]:
    """Greedy and drawn tokens of an engine whose CPU counts as a GPU.

    stores: its layers write keys and values to the pool themselves.
    """
    from minisgl.core import SamplingParams
    from minisgl.kernel import fused
    from minisgl.llm import LLM

    calls = []
    for name in ("draw_rows", "norm_rope"):
        _count(fused, name, calls)
    llm = LLM(folder, "float32", device="cpu", num_page_override=256)
    if stores:
        llm.engine.attn_backend.__class__ = Stored
    warm = SamplingParams(0.8, ignore_eos=True, max_tokens=4, seed=7)
    cool = SamplingParams(ignore_eos=True, max_tokens=4)
    made = llm.generate(prompts, [warm, cool], progress=False)
    return {"ids": [one["token_ids"] for one in made], "calls": calls}


def _count(module: Any, name: str, calls: list[str]) -> None:
    """Note each call, wherever the function has been imported already."""
    import minisgl.engine.sample
    import minisgl.layers.attention

    function = getattr(module, name)

    def noted(*args: Any) -> Any:
        calls.append(name)
        return function(*args)

    for user in (minisgl.engine.sample, minisgl.layers.attention):
        if hasattr(user, name):
            setattr(user, name, noted)


if __name__ == "__main__":
    torch.set_num_threads(1)
    found = everything("cpu")
    if len(sys.argv) > 1:
        asked = json.loads(sys.argv[2])
        found |= answers(sys.argv[1], asked, False)
        found["stored ids"] = answers(sys.argv[1], asked, True)["ids"]
        found["attended"] = Stored.asked
    print(json.dumps(found))
