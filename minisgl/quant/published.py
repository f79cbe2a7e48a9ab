"""What config.json says of a checkpoint that was published quantised."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from minisgl.quant.config import QuantConfig

_HERE = "quantization_config in config.json"


def read_quantization(found: Any) -> QuantConfig | None:
    """The configuration, from what config.json has; None if it has nothing.

    Raises:
        ValueError: a method, or a variant of one, that is not supported.
    """
    if not found:
        return None
    raw = found if isinstance(found, Mapping) else found.to_dict()
    method = raw.get("quant_method")
    if method == "fp8":
        return _read_fp8(raw)
    if method == "compressed-tensors":
        return _read_compressed(raw)
    raise ValueError(
        f"{_HERE} names the method {method!r}, which is not supported; fp8 and "
        "compressed-tensors are"
    )


def _read_fp8(raw: Mapping[str, Any]) -> QuantConfig:
    """As DeepSeek-V3 and Qwen3 are published: a scale for each block."""
    kind = raw.get("fmt") or "e4m3"
    if kind != "e4m3":
        raise ValueError(f"{_HERE} has fmt {kind!r}; only e4m3 is supported")
    rows, columns = raw.get("weight_block_size") or (0, 0)
    ignored = tuple(raw.get("modules_to_not_convert") or ())
    return QuantConfig("fp8", columns, rows, True, ignored)


def _read_compressed(raw: Mapping[str, Any]) -> QuantConfig:
    """As the library compressed-tensors writes them."""
    groups = list((raw.get("config_groups") or {}).values())
    targets = [target for group in groups for target in group["targets"]]
    if targets != ["Linear"]:
        raise ValueError(
            f"{_HERE} has config_groups for {targets}; only one for 'Linear' "
            "is supported"
        )
    weights = groups[0]["weights"]
    _refuse(weights)
    rows, columns = _block(weights)
    ignored = tuple(raw.get("ignore") or ())
    return QuantConfig(_format(weights), columns, rows, True, ignored)


def _format(weights: Mapping[str, Any]) -> str:
    known = {("float", 8): "fp8", ("int", 8): "int8", ("int", 4): "int4"}
    kind, bits = str(weights.get("type")), int(weights.get("num_bits", 0))
    found = known.get((kind, bits))
    if found is None:
        raise ValueError(
            f"{_HERE} has weights of type {kind} with {bits} bits; float with "
            "8, int with 8 and int with 4 are supported"
        )
    return found


def _refuse(weights: Mapping[str, Any]) -> None:
    """Raise ValueError for what would be other weights than are meant."""
    if not weights.get("symmetric", True):
        raise ValueError(
            f"{_HERE} has weights with a zero point (symmetric is false), "
            "which is not supported"
        )
    if weights.get("actorder") == "group":
        raise ValueError(
            f"{_HERE} has actorder 'group': the weights of a group are no "
            "neighbours, which is not supported"
        )


def _block(weights: Mapping[str, Any]) -> tuple[int, int]:
    """Rows and columns that share a scale, 0 for all of them."""
    strategy = weights.get("strategy")
    if strategy == "tensor":
        return 0, 0
    if strategy == "channel":
        return 1, 0
    if strategy == "group":
        return 1, int(weights["group_size"])
    if strategy == "block":
        rows, columns = weights["block_structure"]
        return int(rows), int(columns)
    raise ValueError(
        f"{_HERE} has the strategy {strategy!r}; tensor, channel, group and "
        "block are supported"
    )
