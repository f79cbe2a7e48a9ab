"""Operators against plain torch, and what the scalings of RoPE do."""

import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
import torch.nn.functional as F
import typer

from minisgl import layers
from minisgl.utils import pick_device

LENGTHS = {"factor": 8.0, "original_max_position_embeddings": 1024}
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0} | LENGTHS
SCALINGS = {"default": {}, "linear": LENGTHS, "llama3": LLAMA3, "yarn": LENGTHS}


def rotate(kind: str, positions: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    settings = SCALINGS[kind] | {"rope_type": kind}
    rope = layers.get_rope(64, 64, 8192, 10000.0, tuple(settings.items()))
    return rope.forward(positions, x, x)[0]


def pairs() -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    """Name of an operator, its result, and the same in plain torch."""
    (x, rest), p = torch.randn(2, 5, 128), torch.arange(5)
    norm = layers.RMSNormFused(128, 1e-6)
    norm.weight.normal_()
    plain = F.rms_norm(x + rest, [128], norm.weight, 1e-6)
    yield "RMSNormFused", norm.forward(x, rest)[0], plain
    qkv = layers.LinearQKVMerged(128, 32, 2, 1, has_bias=False)
    qkv.weight.normal_()
    plain = [F.linear(x, part) for part in qkv.weight.split([64, 32, 32])]
    yield "LinearQKVMerged", qkv.forward(x), torch.cat(plain, 1)
    yield "silu_and_mul", layers.silu_and_mul(x), F.silu(x[:, :64]) * x[:, 64:]
    spin = torch.exp(1j * p[:, None] / 10000 ** (torch.arange(32) / 32))
    z = torch.complex(*x.view(5, 2, 64).chunk(2, -1)) * spin[:, None]
    yield "rotary", rotate("default", p, x), torch.view_as_real(z).mT.flatten(1)


def main(device: str = "cpu") -> None:
    """Compare on DEVICE; then print in how many tokens a pair turns once."""
    layers.set_rope_device(pick_device(device))
    with torch.device(pick_device(device)):
        for name, found, plain in pairs():
            torch.testing.assert_close(found, plain, rtol=1e-5, atol=1e-5)
            print(f"{name:15} {list(found.shape)}: equal to plain torch")
        unit = F.pad(torch.ones(1, 32), (0, 32))
        print("\ntokens a turn, pair", *(f"{i:6}" for i in range(0, 32, 4)))
        for kind in SCALINGS:
            cos, sin = rotate(kind, torch.tensor([1]), unit).chunk(2, -1)
            turns = 2 * torch.pi / torch.atan2(sin, cos)[0, ::4]
            print(f"{kind:19}", *(f"{turn:6.0f}" for turn in turns.tolist()))


if __name__ == "__main__":
    typer.run(main)
