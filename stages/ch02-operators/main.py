"""Operators against plain torch, and what the scalings of RoPE do."""

import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
import torch.nn.functional as F
from transformers import AutoConfig

from minisgl import layers, utils
from tools.stagekit import model_path, run

STRETCHED = {"factor": 8.0, "original_max_position_embeddings": 1024}
STRETCHED |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}  # llama3's own


def rope(kind: str, base: float) -> layers.BaseOP:
    settings = tuple((STRETCHED | {"rope_type": kind}).items())
    return layers.get_rope(64, 64, 8192, base, settings)


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
    spin = torch.exp(1j * p[:, None] / 1e4 ** (torch.arange(32) / 32))
    z = torch.complex(*x.view(5, 2, 64).chunk(2, -1)) * spin[:, None]
    plain = torch.view_as_real(z).mT.flatten(1)
    yield "rotary", rope("default", 1e4).forward(p, x, x)[0], plain


def main(model: str = "qwen3-tiny", device: str = "cpu") -> None:
    """Compare operators; then show MODEL's RoPE, stretched in three ways."""
    settings = AutoConfig.from_pretrained(model_path(model)).rope_parameters
    layers.set_rope_device(utils.pick_device(device))
    with torch.device(utils.pick_device(device)):
        for name, found, plain in pairs():
            torch.testing.assert_close(found, plain, rtol=1e-5, atol=1e-5)
            print(f"{name:15} {list(found.shape)}: equal to plain torch")
        x, one = F.pad(torch.ones(1, 32), (0, 32)), torch.tensor([1])
        print("\ntokens a turn, pair", *(f"{i:7}" for i in range(0, 21, 5)))
        for kind in ("default", "linear", "llama3", "yarn"):
            turned, _ = rope(kind, settings["rope_theta"]).forward(one, x, x)
            turns = 2 * torch.pi / torch.atan2(*turned.view(2, 32).flip(0))
            print(f"{kind:19}", *(f"{turns[i]:7.0f}" for i in range(0, 21, 5)))


if __name__ == "__main__":
    run(main)
