"""One weight in three formats, and a model in each of them."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[i]) for i in (2, 0)]

import torch
from helpers import answers_of, forms, linear_bytes, spread

from minisgl.kernel.quant_linear import dequantize
from minisgl.quant import QuantConfig, create_quant_method
from tools.bench_quant import Subject, all_logits, mean_kl, reference_logits
from tools.stagekit import measured, model_path, run

WEIGHTS = [0.5, -1.0, 0.24, 0.07, 0.019, -0.004, 0.0, 0.001] * 4


def main(model: str = "qwen3-tiny") -> None:
    """Round eight weights, then compare engines with transformers."""
    row = torch.tensor([WEIGHTS])
    print("weight".ljust(7), *(f"{x:8.3f}" for x in WEIGHTS[:8]))
    for name in ("fp8", "int8", "int4"):
        method = create_quant_method(QuantConfig(name, 32))
        meant = dequantize(*method.quantize(row), 32)[0, :8]
        print(name.ljust(7), *(f"{x:8.3f}" for x in meant))
    print("\nof numbers drawn from a normal distribution, the mean error")
    for name, share in spread().items():
        print(f"{name:7}{share}")

    path = model_path(model)
    ids = [(37 * i) % 500 for i in range(96)]
    expected = reference_logits(path, ids)
    print("\nform      linears KiB  KV bytes a token  mean KL       tokens")
    first: list[int] = []
    for name, llm in forms(path):
        found = answers_of(llm)
        first = first or found
        pairs = list(zip(found, first, strict=True))
        same = measured(sum(a == b for a, b in pairs), f"of {len(pairs)}", 0)
        kl = f"~{mean_kl(expected, all_logits(llm, ids)):.1e}"
        size = linear_bytes(llm) / 1024
        token = Subject(llm, 0.0, []).token_bytes
        print(f"{name:10}{size:11,.1f}{token:18,}  {kl:12}  {same} equal")


if __name__ == "__main__":
    run(main)
