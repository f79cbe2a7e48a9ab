"""Libraries told of one batch, asked the same, and asked for too much."""

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal

sys.path[:0] = [str(Path(__file__).resolve().parents[i]) for i in (2, 0)]

import told
import torch

from minisgl.attention import Demand
from minisgl.attention.fa import FlashAttentionBackend
from minisgl.attention.fi import FlashInferBackend
from minisgl.core import SamplingParams
from minisgl.llm import LLM
from minisgl.models import ModelConfig
from minisgl.utils import cached_load_hf_config
from tests.fakes.install import stand_ins
from tools.stagekit import model_path, run

PROMPTS = [[*range(start, start + 20)] for start in range(0, 200, 50)]
KINDS = (FlashInferBackend, FlashAttentionBackend)
BF16, FP32, CUDA = torch.bfloat16, torch.float32, torch.device("cuda")


def answers(path: str, backend: str, page_size: int, **settings: Any) -> Any:
    """Ask a new engine; the tokens of its answers."""
    settings |= {"attention_backend": backend, "page_size": page_size}
    llm = LLM(path, num_page_override=4096 // page_size, **settings)
    asked = llm.generate(PROMPTS, SamplingParams(max_tokens=8))
    return [answer["token_ids"] for answer in asked]


def main(
    model: str = "qwen3-tiny", device: Literal["cpu", "cuda"] = "cpu"
) -> None:
    """On a CPU stand-ins take the places of the two libraries."""
    path, dtype = str(model_path(model)), BF16 if device == "cuda" else FP32
    config = ModelConfig.from_hf(cached_load_hf_config(path))
    fakes = stand_ins("flashinfer", "flash_attn")
    with fakes if device == "cpu" else nullcontext():
        ctx = told.make(config, dtype, device)
        print(f"pages of {told.PAGE_SIZE} tokens: {told.PAGES}")
        print(f"cached and all tokens: {told.SPANS}")
        for kind in KINDS:
            print(kind.__name__, *told.lines(kind(config), ctx), sep="\n  ")
        first = answers(path, "torch", 1, dtype=dtype, device=device)
        for name, size in [("fi", 1), ("fi", 16), ("fa", 256), ("fa,fi", 256)]:
            found = answers(path, name, size, dtype=dtype, device=device)
            equal = [a == b for a, b in zip(found, first, strict=True)]
            print(f"{name:6}pages of {size:3}: {sum(equal)} of 4 as by torch")
        print(told.refusal("fa", Demand(config, 16, BF16, CUDA)))
    for dtype, where in ((FP32, CUDA), (BF16, torch.device("cpu"))):
        print(told.refusal("fi", Demand(config, 1, dtype, where)))


if __name__ == "__main__":
    run(main)
