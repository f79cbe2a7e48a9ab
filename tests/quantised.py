"""Quantised checkpoints as they are published, made from a tiny model's.

Everything here is written out the long way, without the engine's own functions, so
that the engine is compared with what the formats say.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.parity import Reference

E4M3 = torch.float8_e4m3fn
BLOCK = (32, 64)


def _blocks(weight: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """The largest number of each block, [blocks down, blocks across]."""
    down, across = -(-weight.shape[0] // rows), -(-weight.shape[1] // columns)
    found = torch.zeros(down, across)
    for i in range(down):
        for j in range(across):
            part = weight[
                i * rows : (i + 1) * rows, j * columns : (j + 1) * columns
            ]
            found[i, j] = part.abs().max()
    return found


def _spread(scale: torch.Tensor, shape: torch.Size, rows: int, columns: int):
    wide = scale.repeat_interleave(rows, 0).repeat_interleave(columns, 1)
    return wide[: shape[0], : shape[1]]


def _pack(values: torch.Tensor, bits: int) -> torch.Tensor:
    """Numbers into words of 32 bits, the first one lowest, half a range added."""
    each = 32 // bits
    words = torch.zeros(
        len(values), -(-values.shape[1] // each), dtype=torch.int64
    )
    for column in range(values.shape[1]):
        number = values[:, column].long() + (1 << bits - 1)
        words[:, column // each] |= number << bits * (column % each)
    words = torch.where(words >= 2**31, words - 2**32, words)
    return words.to(torch.int32)


def fp8_blocks(weight: torch.Tensor) -> tuple[dict[str, Any], torch.Tensor]:
    scale = _blocks(weight, *BLOCK) / 448
    wide = _spread(scale, weight.shape, *BLOCK)
    values = (weight / wide).to(E4M3)
    stored = {"weight": values, "weight_scale_inv": scale}
    return stored, values.float() * wide


def fp8_channels(weight: torch.Tensor) -> tuple[dict[str, Any], torch.Tensor]:
    scale = weight.abs().amax(1, keepdim=True) / 448
    values = (weight / scale).to(E4M3)
    return {"weight": values, "weight_scale": scale}, values.float() * scale


def fp8_tensor(weight: torch.Tensor) -> tuple[dict[str, Any], torch.Tensor]:
    scale = weight.abs().max() / 448
    values = (weight / scale).to(E4M3)
    stored = {
        "weight": values,
        "weight_scale": scale.view(1),
        "input_scale": torch.ones(1),
    }
    return stored, values.float() * scale


def int8_channels(weight: torch.Tensor) -> tuple[dict[str, Any], torch.Tensor]:
    scale = weight.abs().amax(1, keepdim=True) / 127.5
    values = (weight / scale).round().clamp(-128, 127).to(torch.int8)
    return {"weight": values, "weight_scale": scale}, values.float() * scale


def packed(bits: int, group: int) -> Callable[[torch.Tensor], Any]:
    def make(weight: torch.Tensor) -> tuple[dict[str, Any], torch.Tensor]:
        scale = _blocks(weight, 1, group) / (2 ** (bits - 1) - 0.5)
        wide = _spread(scale, weight.shape, 1, group)
        low = -(1 << bits - 1)
        values = (weight / wide).round().clamp(low, -low - 1)
        stored = {
            "weight_packed": _pack(values, bits),
            "weight_scale": scale,
            "weight_shape": torch.tensor(weight.shape),
        }
        return stored, values * wide

    return make


def compressed(format: str, **weights: Any) -> dict[str, Any]:
    """A quantization_config of compressed-tensors."""
    settings = {"symmetric": True, "dynamic": False, "actorder": None}
    group = {"targets": ["Linear"], "weights": settings | weights}
    return {
        "quant_method": "compressed-tensors",
        "format": format,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }


KINDS: dict[str, tuple[dict[str, Any], Callable[[torch.Tensor], Any]]] = {
    "fp8, blocks": (
        {
            "quant_method": "fp8",
            "fmt": "e4m3",
            "activation_scheme": "dynamic",
            "weight_block_size": list(BLOCK),
            "modules_to_not_convert": ["lm_head"],
        },
        fp8_blocks,
    ),
    "fp8, channels": (
        compressed(
            "float-quantized", num_bits=8, type="float", strategy="channel"
        ),
        fp8_channels,
    ),
    "fp8, tensor": (
        compressed(
            "float-quantized", num_bits=8, type="float", strategy="tensor"
        ),
        fp8_tensor,
    ),
    "int8, channels": (
        compressed("int-quantized", num_bits=8, type="int", strategy="channel"),
        int8_channels,
    ),
    "int8, packed": (
        compressed(
            "pack-quantized",
            **{
                "num_bits": 8,
                "type": "int",
                "strategy": "group",
                "group_size": 32,
            },
        ),
        packed(8, 32),
    ),
    "int4, packed": (
        compressed(
            "pack-quantized",
            **{
                "num_bits": 4,
                "type": "int",
                "strategy": "group",
                "group_size": 32,
            },
        ),
        packed(4, 32),
    ),
}


def is_linear(name: str) -> bool:
    return name.endswith("_proj.weight")


def load_all(folder: Path) -> dict[str, torch.Tensor]:
    """All tensors of a folder."""
    tensors = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(file)
    return tensors


def write(
    source: Path,
    target: Path,
    tensors: dict[str, torch.Tensor],
    quantization: dict[str, Any] | None = None,
) -> Path:
    """A folder like `source` with these tensors."""
    target.mkdir(parents=True)
    for path in source.iterdir():
        if "safetensors" not in path.name:
            shutil.copy(path, target)
    config = json.loads((source / "config.json").read_text())
    if quantization is not None:
        config["quantization_config"] = quantization
    (target / "config.json").write_text(json.dumps(config))
    whole = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(whole, target / "model.safetensors")
    return target


def publish(source: Path, folder: Path, kind: str) -> tuple[Path, Path]:
    """A published checkpoint, and one in float32 with the weights that it means."""
    quantization, quantize = KINDS[kind]
    stored, meant = {}, {}
    for name, tensor in load_all(source).items():
        if not is_linear(name):
            stored[name] = meant[name] = tensor
            continue
        parts, meant[name] = quantize(tensor.float())
        for part, value in parts.items():
            stored[f"{name.removesuffix('weight')}{part}"] = value
    return (
        write(source, folder / "published", stored, quantization),
        write(source, folder / "meant", meant),
    )


def hf_logits(folder: Path, ids: list[int]) -> torch.Tensor:
    """float32 [tokens, vocab] of transformers."""
    from tools.bench_quant import reference_logits

    return reference_logits(folder, ids)


def reference_of(folder: Path, ids: list[int], length: int) -> Reference:
    """Greedy ids of transformers for a folder that is no model of the zoo."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    found, gaps = list(ids), []
    with torch.inference_mode():
        for _ in range(length):
            logits = model(torch.tensor([found])).logits[0, -1]
            best = logits.topk(2).values
            gaps.append(float((best[0] - best[1]) / logits.std()))
            found.append(int(logits.argmax()))
    return Reference(found[len(ids) :], gaps)
