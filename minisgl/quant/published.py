"""What config.json says of a checkpoint that was published quantised."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from minisgl.quant.config import QuantConfig

_HERE = "quantization_config in config.json"


def read_quantization(found: Any) -> QuantConfig | None:
    """The configuration, from what config.json has; None if it has nothing.

    Raises:
        ValueError: a method, or a variant of one, that is not supported, or an
            entry that cannot be read.
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
    rows, columns = 0, 0
    if raw.get("weight_block_size"):
        rows, columns = _pair(raw, "weight_block_size")
    ignored = _names(raw, "modules_to_not_convert")
    return QuantConfig("fp8", columns, rows, True, ignored)


def _read_compressed(raw: Mapping[str, Any]) -> QuantConfig:
    """As the library compressed-tensors writes them."""
    groups = raw.get("config_groups") or {}
    if not isinstance(groups, Mapping):
        raise ValueError(f"{_HERE} has config_groups {groups!r}, not an object")
    for name, group in groups.items():
        _check_group(name, group)
    targets = [
        target for group in groups.values() for target in group["targets"]
    ]
    if targets != ["Linear"]:
        raise ValueError(
            f"{_HERE} has config_groups for {targets}; only one for 'Linear' "
            "is supported"
        )
    weights = next(iter(groups.values()))["weights"]
    _refuse(weights)
    rows, columns = _block(weights)
    ignored = _names(raw, "ignore")
    return QuantConfig(_format(weights), columns, rows, True, ignored)


def _check_group(name: str, group: Any) -> None:
    """Raise ValueError if it does not say which linears, and how."""
    for key, kind in {"targets": list, "weights": Mapping}.items():
        if not isinstance(group, Mapping) or not isinstance(
            group.get(key), kind
        ):
            wanted = "a list" if kind is list else "an object"
            raise ValueError(
                f"{_HERE} has the group {name!r} without {key}, which has to "
                f"be {wanted}"
            )


def _names(raw: Mapping[str, Any], key: str) -> tuple[str, ...]:
    """The linears to leave alone, as `QuantConfig.ignored` takes them."""
    found = raw.get(key) or []
    if not isinstance(found, list | tuple) or not all(
        isinstance(entry, str) for entry in found
    ):
        raise ValueError(f"{_HERE} has {key} {found!r}, not a list of names")
    for entry in found:
        if not entry.startswith("re:"):
            continue
        try:
            re.compile(entry.removeprefix("re:"))
        except re.error as error:
            raise ValueError(
                f"{_HERE} has {entry!r} in {key}, which is no regular "
                f"expression: {error}"
            ) from None
    return tuple(found)


def _pair(raw: Mapping[str, Any], key: str) -> tuple[int, int]:
    """Rows and columns of a block."""
    found = raw.get(key)
    if (
        not isinstance(found, Sequence)
        or len(found) != 2
        or not all(type(size) is int and size > 0 for size in found)
    ):
        raise ValueError(
            f"{_HERE} has {key} {found!r}; rows and columns, two whole numbers, "
            "are needed"
        )
    return found[0], found[1]


def _format(weights: Mapping[str, Any]) -> str:
    known = {("float", 8): "fp8", ("int", 8): "int8", ("int", 4): "int4"}
    kind, bits = weights.get("type"), weights.get("num_bits")
    found = known.get((str(kind), bits)) if isinstance(bits, int) else None
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
        size = weights.get("group_size")
        if type(size) is not int or size < 1:
            raise ValueError(
                f"{_HERE} has group_size {size!r}; a whole number is needed"
            )
        return 1, size
    if strategy == "block":
        return _pair(weights, "block_structure")
    raise ValueError(
        f"{_HERE} has the strategy {strategy!r}; tensor, channel, group and "
        "block are supported"
    )
