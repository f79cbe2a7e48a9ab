"""Which part of a model, and of the tensors it is stored as, a rank has."""

from __future__ import annotations

from dataclasses import dataclass, replace

from minisgl.distributed import DistributedInfo
from minisgl.models.config import ModelConfig
from minisgl.utils import div_ceil, div_even

# By the last name of the layer: cut along the output, the heads of k and v,
# the input, the vocabulary. Whatever is not named every rank has as a whole.
_OUTPUT = (
    *("q_proj", "gate_proj", "up_proj"),
    *("in_proj_z", "in_proj_b", "in_proj_a"),
)
_KV_HEADS = ("k_proj", "v_proj")
_INPUT = ("o_proj", "down_proj", "out_proj")
_VOCABULARY = ("embed_tokens", "lm_head")
# Several things one after the other, each of which is cut along the output.
_CHANNELS = ("in_proj_qkv", "conv1d")
# Weights that are themselves named, one number a head.
_HEADS = ("A_log", "dt_bias")


def local_config(config: ModelConfig, size: int) -> ModelConfig:
    """The configuration with the heads that one of `size` ranks has.

    The KV pool and the attention backends need no more than that to be one
    rank's.

    Raises:
        ValueError: something cannot be cut evenly; both numbers are named.
    """
    heads, pairs = config.num_qo_heads, config.num_kv_heads
    _check("query heads", heads, size, heads % size == 0)
    fits = pairs % size == 0 or size % pairs == 0
    _check("kv heads", pairs, size, fits)
    what, middle = "an MLP", config.intermediate_size
    if config.is_moe:
        what, middle = "an expert", config.moe_intermediate_size
    _check(f"columns of {what}", middle, size, middle % size == 0)
    shared = config.shared_expert_size
    _check("columns of a shared expert", shared, size, shared % size == 0)
    _check_groups(config, size)
    linear = config.linear
    if linear is not None:
        keys = linear.num_k_heads
        _check("key heads of linear layers", keys, size, keys % size == 0)
        linear = linear.shared(size)
    return replace(
        config,
        linear=linear,
        num_qo_heads=heads // size,
        num_kv_heads=div_even(pairs, size, allow_replicate=True),
    )


def _check_groups(config: ModelConfig, size: int) -> None:
    """Raise ValueError unless ranks have whole groups of quantised weights."""
    quantization = config.quantization
    if quantization is None:
        return
    heads = config.num_qo_heads * config.head_dim
    quantization.check_width("qkv_proj", config.hidden_size, 1)
    quantization.check_width("o_proj", heads, size)
    quantization.check_width("down_proj", config.intermediate_size, size)
    if config.linear is not None:
        quantization.check_width("out_proj", config.linear.parts[2], size)


def _check(what: str, count: int, size: int, fits: bool) -> None:
    if not fits:
        raise ValueError(
            f"a model with {count} {what} cannot be cut over {size} ranks; "
            "choose another --tensor-parallel-size"
        )


@dataclass(frozen=True)
class Part:
    """start to stop along `dim` of a stored tensor.

    length: what the model has there; from the end of the part on, zeros.
    """

    dim: int
    start: int
    stop: int
    length: int


def parts_of(
    name: str, shape: list[int], info: DistributedInfo, config: ModelConfig
) -> list[Part]:
    """As `part_of`, of what is several things in one tensor; [] is all of it.

    config: of the whole model. The parts lie along the same dimension, and the
    rank has them one after the other.
    """
    layer, _, kind = name.rpartition(".")
    layer = layer.rpartition(".")[2]
    if layer == "experts" and kind == "gate_up_proj":
        return _pieces(1, [shape[1] // 2] * 2, info)
    if layer == "experts" and kind == "down_proj":
        return _pieces(2, [shape[2]], info)
    if layer in _CHANNELS and config.linear is not None:
        return _pieces(0, config.linear.parts, info)
    if kind in _HEADS:
        return _pieces(0, [shape[0]], info)
    part = part_of(name, shape, info, config.num_kv_heads)
    return [] if part is None else [part]


def _pieces(dim: int, sizes: list[int], info: DistributedInfo) -> list[Part]:
    """This rank's share of each of several runs, which follow one another."""
    parts, start = [], 0
    for size in sizes:
        length = size // info.size
        first = start + info.rank * length
        parts.append(Part(dim, first, first + length, length))
        start += size
    return parts


def part_of(
    name: str, shape: list[int], info: DistributedInfo, num_kv_heads: int
) -> Part | None:
    """What rank `info.rank` needs of a stored tensor; None is all of it.

    name: as it is stored. num_kv_heads: of the whole model.
    """
    layer, _, kind = name.rpartition(".")
    layer = layer.rpartition(".")[2]
    if layer in _INPUT and kind in ("weight", "weight_scale"):
        # One scale for a whole row is every rank's.
        whole = shape[1] == 1
        return None if whole else _share(1, shape, info.rank, info.size)
    if layer in _OUTPUT:
        return _share(0, shape, info.rank, info.size)
    if layer in _KV_HEADS:
        # With fewer heads than ranks, neighbours read the same one.
        parts = min(info.size, num_kv_heads)
        return _share(0, shape, info.rank * parts // info.size, parts)
    if layer in _VOCABULARY:
        return _share(0, shape, info.rank, info.size)
    return None


def _share(dim: int, shape: list[int], index: int, parts: int) -> Part:
    """Number `index` of `parts` equal parts; the last ones may be short."""
    length = div_ceil(shape[dim], parts)
    start = min(index * length, shape[dim])
    return Part(dim, start, min(start + length, shape[dim]), length)
