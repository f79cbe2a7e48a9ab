"""Layers of experts to compare backends on; run as a program, under the interpreter.

`python tests/experts.py` prints one JSON object: how far the Triton backend is from
torch in each case, and tokens of an engine that uses it. TRITON_INTERPRET=1 must be set
before triton is imported, so a test starts it as a process of its own.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[1]
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))

from minisgl.moe import create_moe_backend  # noqa: E402


@dataclass(frozen=True)
class Case:
    """T tokens, E experts of which each takes k, hidden size H, middle F."""

    T: int
    E: int
    k: int
    H: int
    F: int
    dtype: str = "float32"
    renormalize: bool = True
    activation: str = "silu"
    on_input: bool = False
    crowded: bool = False  # all tokens want the same experts

    def __str__(self) -> str:
        switches = [self.activation]
        switches += ["norm"] * self.renormalize + ["input"] * self.on_input
        switches += ["crowded"] * self.crowded
        sizes = f"{self.T}x{self.H}, {self.k} of {self.E}x{self.F}"
        return " ".join([sizes, self.dtype, *switches])


CASES = [
    Case(1, 8, 2, 128, 96),
    Case(1, 8, 1, 128, 96, renormalize=False),
    Case(5, 4, 4, 64, 40, activation="gelu"),
    Case(33, 8, 2, 128, 96, on_input=True, renormalize=False),
    Case(40, 8, 3, 72, 40, crowded=True),
    Case(150, 2, 1, 64, 72),
    Case(20, 8, 2, 128, 96, dtype="float16"),
]
LARGE = [
    Case(1, 128, 8, 2048, 768, dtype="bfloat16"),
    Case(64, 128, 8, 2048, 768, dtype="bfloat16"),
    Case(2048, 128, 8, 2048, 768, dtype="bfloat16"),
    Case(300, 128, 8, 512, 768),
]
"""Only for a real GPU."""


def distance(case: Case, device: str) -> float:
    """Largest difference of the two backends, in standard deviations of the result."""
    rng = torch.Generator().manual_seed(case.T)

    def draw(*shape: int) -> torch.Tensor:
        made = torch.randn(shape, generator=rng) * shape[-1] ** -0.5
        return made.to(device, getattr(torch, case.dtype))

    x, w1 = draw(case.T, case.H), draw(case.E, 2 * case.F, case.H)
    w2, gates = draw(case.E, case.H, case.F), draw(case.T, case.E)
    x *= case.H**0.5
    gates *= 4 * case.E**0.5
    if case.crowded:
        gates[:] = gates[0]
    results = [
        create_moe_backend(name, torch.device(device)).forward(
            x,
            w1,
            w2,
            gates,
            case.k,
            case.renormalize,
            case.activation,
            case.on_input,
        )
        for name in ("torch", "fused")
    ]
    wanted, got = (result.float() for result in results)
    assert results[1].dtype == x.dtype and got.shape == x.shape
    return float((wanted - got).abs().max() / wanted.std())


def bound(case: Case) -> float:
    """What rounding may do to a case."""
    return {"float32": 3e-5, "float16": 5e-3, "bfloat16": 8e-2}[case.dtype]


def engine_tokens(model: str, tokens: int) -> tuple[list[list[int]], int]:
    """Answers to two prompts with Triton's experts, and how often these ran."""
    from minisgl.moe import fused
    from tests.driver import Driver
    from tests.parity import prompts
    from tools.models import model_path

    folder = model_path(model)
    run, calls = fused.fused_experts_impl, [0]

    def counted(*args: object) -> torch.Tensor:
        calls[0] += 1
        return run(*args)

    fused.fused_experts_impl = counted
    driver = Driver(folder, page_size=4, moe_backend="fused")
    for uid, ids in enumerate(prompts(folder)[1:3]):
        driver.submit(uid, ids, tokens)
    answers = driver.run()
    return [answers[uid] for uid in sorted(answers)], calls[0]


def main() -> None:
    answers, calls = engine_tokens("qwen3-moe-tiny", 4)
    found = {str(case): distance(case, "cpu") for case in CASES}
    print(json.dumps({"distances": found, "answers": answers, "calls": calls}))


if __name__ == "__main__":
    main()
