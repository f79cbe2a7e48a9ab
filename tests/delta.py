"""Kernels of the gated delta rule beside torch's lines; run under the interpreter.

`python tests/delta.py FOLDER PROMPTS` prints one JSON object. TRITON_INTERPRET=1 must
be set before triton is imported, so a test starts it as a process of its own.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))

from minisgl.attention.segments import Segment, Wave  # noqa: E402
from minisgl.kernel import delta  # noqa: E402
from minisgl.layers.gated_delta import GatedNorm  # noqa: E402

SHAPES = [(2, 4, 32, 48, 4), (1, 1, 24, 20, 2)]
"""Key heads, value heads, k_dim, v_dim, width of the convolution."""
LENGTHS = [(1, 2), (16, 17, 3), (33,)]
"""Tokens of the segments of a wave."""


class Case:
    """A layer, its states in 8 slots, and inputs whose rows lie apart."""

    def __init__(self, shape, tokens: int, device: str, dtype, seed: int = 0):
        k_heads, v_heads, k_dim, v_dim, width = shape
        make = torch.Generator().manual_seed(seed)
        channels = 2 * k_heads * k_dim + v_heads * v_dim

        def draw(*sizes, kind=dtype):
            return torch.randn(sizes, generator=make).to(device, kind)

        merged = draw(tokens, channels + 7 + 2 * v_heads)
        self.inputs = merged[:, :channels], merged[:, channels + 7 :]
        self.weights = delta.DeltaWeights(
            *(draw(channels, width), draw(v_heads), draw(v_heads)),
            *(k_heads, k_dim),
        )
        conv = draw(8, channels, width - 1)
        self.states = conv, draw(8, v_heads, k_dim, v_dim, kind=torch.float32)

    def run(self, function, where) -> list[torch.Tensor]:
        """The result, and both states after it."""
        states = [state.clone() for state in self.states]
        return [function(*self.inputs, self.weights, *states, where), *states]


def share_apart(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """The largest difference as a share of a number, or of their usual size."""
    got, wanted = got.float(), wanted.float()
    size = wanted.abs() + wanted.square().mean().sqrt()
    return float(((got - wanted).abs() / size).max())


def decoded(shape, device: str, dtype) -> float:
    """How far a decode step is from torch's, states and all."""
    case = Case(shape, 5, device, dtype)
    rows = torch.tensor([6, 0, 3, 2, 7], device=device)
    found = case.run(delta.delta_decode, rows)
    wanted = case.run(delta.delta_decode_torch, rows)
    return max(map(share_apart, found, wanted))


def make_waves(lengths, device: str) -> list[Wave]:
    """Each segment goes on in a second wave, and some are saved."""
    start, waves = 0, ([], [])
    for row, length in enumerate(lengths):
        middle, stop = start + length, start + 2 * length
        save = (6, -1, 7)[row]
        waves[0].append(Segment(start, middle, 3 + row, row, save))
        waves[1].append(Segment(middle, stop, row, row, -1))
        start = stop
    return [
        Wave(wave, torch.tensor(wave, dtype=torch.int32, device=device))
        for wave in waves
    ]


def prefilled(shape, lengths, device: str, dtype) -> float:
    """How far a prefill is from torch's, states and snapshots and all."""
    case = Case(shape, 2 * sum(lengths), device, dtype)
    waves = make_waves(lengths, device)
    found = case.run(delta.delta_prefill, waves)
    wanted = case.run(delta.delta_prefill_torch, waves)
    return max(map(share_apart, found, wanted))


def normed(shape, device: str, dtype) -> float:
    """How far the norm of the result is from torch's."""
    _, heads, _, size, _ = shape
    make = torch.Generator().manual_seed(1)
    merged = torch.randn(7, 5 + 2 * heads * size, generator=make)
    merged = merged.to(device, dtype)
    x, gate = merged[:, 5:].chunk(2, -1)
    norm = GatedNorm(size, 1e-6)
    norm.weight = x[0, :size].clone()
    x, gate = x.contiguous().view(7, heads, size), gate.view(7, heads, size)
    return share_apart(norm.forward(x, gate), norm.forward_torch(x, gate))


def apart(device: str, dtype) -> dict[str, float]:
    """The largest distances of all shapes."""
    return {
        "norm": max(normed(shape, device, dtype) for shape in SHAPES),
        "decode": max(decoded(shape, device, dtype) for shape in SHAPES),
        "prefill": max(
            prefilled(shape, lengths, device, dtype)
            for shape in SHAPES
            for lengths in LENGTHS
        ),
    }


def answers(folder: str, prompts: list[list[int]]) -> dict[str, Any]:
    """An engine's tokens, and how often it called each kernel."""
    from tests.driver import Driver

    calls = {"decode": 0, "prefill": 0}

    def count(name: str) -> None:
        run = getattr(delta, f"delta_{name}_triton")

        def counted(*args: Any) -> torch.Tensor:
            calls[name] += 1
            return run(*args)

        setattr(delta, f"delta_{name}_triton", counted)

    for name in calls:
        count(name)
    driver = Driver(folder, overlap=True, max_extend_tokens=24)
    for uid, ids in enumerate(prompts):
        driver.submit(uid, ids, 4)
    driver.run()
    driver.assert_every_page()
    return {
        "calls": calls,
        "ids": [driver.answers[i] for i in range(len(prompts))],
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    folder, prompts = sys.argv[1], json.loads(sys.argv[2])
    with torch.inference_mode():
        far = {
            str(dtype).removeprefix("torch."): apart("cpu", dtype)
            for dtype in (torch.float32, torch.bfloat16)
        }
    print(json.dumps({"apart": far, **answers(folder, prompts)}))
