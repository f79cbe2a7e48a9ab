"""Weights from safetensors files to a model, one parameter at a time."""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
from rich.progress import track

from minisgl.distributed import get_tp_info
from minisgl.layers import BaseOP
from minisgl.layers.linear import _LinearTPImpl
from minisgl.models.checkpoint import WeightFiles
from minisgl.models.config import ModelConfig
from minisgl.models.quantized import (
    QuantizedFiles,
    named_linears,
    quantized_linears,
)
from minisgl.models.shard import parts_of
from minisgl.models.text_files import TextFiles
from minisgl.quant import QuantConfig, create_quant_method
from minisgl.quant.base import QuantMethod
from minisgl.utils import (
    cached_load_hf_config,
    download_hf_weight,
    init_logger,
)

logger = init_logger(__name__)

# What the model calls one weight, checkpoints store as several.
_MERGED = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
    "in_proj": ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a"),
}
_PART_OF = {part: whole for whole, parts in _MERGED.items() for part in parts}
# Each expert is stored by itself; the model has all of a layer in one tensor.
_EXPERT = re.compile(r"(.+\.experts)\.(\d+)\.(gate|up|down)_proj\.weight")


def _get_expert_stack_info(key: str) -> tuple[str, int] | None:
    """The model's name for the tensor of an expert, and which expert it is."""
    if (match := _EXPERT.fullmatch(key)) is None:
        return None
    name = "down_proj" if match[3] == "down" else "gate_up_proj"
    return f"{match[1]}.{name}", int(match[2])


def _count_experts(names: Iterable[str]) -> int:
    found = map(_get_expert_stack_info, names)
    return max((info[1] + 1 for info in found if info), default=0)


@cache
def _stacked(whole: str, experts: int) -> tuple[str, ...]:
    """What a stack is made of: expert by expert, its gate before its up."""
    prefix, _, name = whole.rpartition(".")
    parts = _MERGED.get(name, (name,))
    return tuple(
        f"{prefix}.{expert}.{part}.weight"
        for expert in range(experts)
        for part in parts
    )


def _get_merge_info(key: str, experts: int = 0) -> tuple[str, tuple[str, ...]]:
    """The model's name for a stored name, and all parts it is made of.

    experts: how many a layer has.
    """
    if (stack := _get_expert_stack_info(key)) is not None:
        return stack[0], _stacked(stack[0], experts)
    for part, whole in _PART_OF.items():
        if f".{part}." in key:
            merged = key.replace(f".{part}.", f".{whole}.")
            names = (key.replace(part, other) for other in _MERGED[whole])
            return merged, tuple(names)
    return key, (key,)


def _plan(
    files: TextFiles, wanted: Collection[str] | None
) -> tuple[dict[str, tuple[str, ...]], list[str]]:
    """(stored names by the model's name, stored names nobody wants).

    Finds what is missing before anything is read.
    """
    plan: dict[str, tuple[str, ...]] = {}
    unknown = []
    experts = _count_experts(files.names())
    for name in files.names():
        whole, parts = _get_merge_info(name, experts)
        if wanted is not None and whole not in wanted:
            unknown.append(name)
        elif plan.setdefault(whole, parts) != parts:
            raise ValueError(
                f"weight {whole!r} is stored twice in {files.folder}: "
                f"as {' + '.join(plan[whole])} and as {' + '.join(parts)}"
            )
    for whole in wanted or ():
        plan.setdefault(whole, (whole,))
    for parts in plan.values():
        for part in parts:
            if part not in files:
                raise ValueError(
                    f"tensor {part!r} is in no file of {files.folder}"
                )
    return plan, unknown


def _is_redundant(files: TextFiles, name: str) -> bool:
    """Whether nothing is lost without it: a table that is computed anyway, or
    the head of a model whose head is its embedding."""
    embedding = "model.embed_tokens.weight"
    if name == "lm_head.weight" and embedding in files:
        head, table = files.read(name), files.read(embedding)
        return head.dtype == table.dtype and torch.equal(head, table)
    return name.endswith(".rotary_emb.inv_freq")


class _Stored(NamedTuple):
    """What a rank has read of a tensor, and the shape its model wants."""

    found: torch.Tensor
    shape: list[int]


class _Reader:
    """Reads of each tensor what this rank needs."""

    def __init__(self, files: TextFiles, model_path: str) -> None:
        self._files, self._info = files, get_tp_info()
        self._config: ModelConfig | None = None
        if self._info.size > 1:
            config = cached_load_hf_config(model_path)
            self._config = ModelConfig.from_hf(config)

    def read(self, name: str) -> _Stored:
        shape, parts = self._files.shape(name), []
        if self._config is not None:
            parts = parts_of(name, shape, self._info, self._config)
        if not parts:
            return _Stored(self._files.read(name), shape)
        dim, found = parts[0].dim, []
        for part in parts:
            where = part.dim, part.start, part.stop
            found.append(self._files.read_part(name, *where))
        shape[dim] = sum(part.length for part in parts)
        whole = found[0] if len(found) == 1 else torch.cat(found, dim)
        return _Stored(whole, shape)


def _merge(
    parts: list[_Stored], device: torch.device, dtype: torch.dtype | None
) -> torch.Tensor:
    """Stack along the output into memory of our own, converting on the way."""
    lengths = [part.shape[0] for part in parts]
    shape = (sum(lengths), *parts[0].shape[1:])
    kind = dtype or parts[0].found.dtype
    result = torch.empty(shape, dtype=kind, device=device)
    for target, part in zip(result.split(lengths), parts, strict=True):
        target[: len(part.found)].copy_(part.found)
        target[len(part.found) :].zero_()
    return result


def load_weight(
    model_path: str,
    device: torch.device,
    dtype: torch.dtype | None = None,
    wanted: Collection[str] | None = None,
    published: QuantConfig | None = None,
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield (name in the model, tensor on `device`), each name once.

    Only one weight is in flight: what is yielded is all that is allocated. Over
    several ranks it is this rank's part, and no more than that is read.

    model_path: a folder or a hub id.
    dtype: what the tensors become; as they are stored when None. A dtype that
        cannot hold all stored values is reported at the end.
    wanted: names to yield, every one of which must be there; other tensors are
        not read, and reported at the end.
    published: how the files are quantised. Values and scales are yielded as
        they are, see `QuantizedFiles`.

    Raises:
        FileNotFoundError, ValueError: as for `WeightFiles`.
        ValueError: a tensor is in no file.
    """
    folder = Path(download_hf_weight(model_path))
    files = TextFiles(
        WeightFiles(folder)
        if published is None
        else QuantizedFiles(folder, published)
    )
    plan, unknown = _plan(files, wanted)
    reader, narrowed = _Reader(files, model_path), set()
    quiet = not sys.stderr.isatty()
    bar = track(plan.items(), "Loading weights", disable=quiet, transient=True)
    for name, stored in bar:
        parts = [reader.read(part) for part in stored]
        kept, kind = parts[0].found.dtype, dtype
        if name.endswith(".weight_scale") or f"{name}_scale" in plan:
            kind = None
        if kind is not None and torch.promote_types(kept, kind) != kind:
            narrowed.add(kept)
        merged = _merge(parts, device, kind)
        if last := _get_expert_stack_info(stored[-1]):
            merged = merged.view(last[1] + 1, -1, merged.shape[-1])
        yield name, merged
    if odd := [name for name in unknown if not _is_redundant(files, name)]:
        few = ", ".join(odd[:5])
        logger.warning(f"{len(odd)} stored tensors are not used: {few}")
    for kept in narrowed:
        logger.warning(f"weights stored in {kept} lose precision as {dtype}")


def set_methods(model: BaseOP, config: QuantConfig) -> None:
    """Quantise the linears of a model that has no weights yet."""
    method = create_quant_method(config)
    for path, linear in named_linears(model):
        parent, _, name = path.rpartition(".")
        stored = [f"{parent}.{part}" for part in _MERGED.get(name, (name,))]
        if config.covers(stored):
            method.prepare(linear)


def load_model_weight(
    model: BaseOP, model_path: str, device: torch.device, dtype: torch.dtype
) -> None:
    """Fill `model`, made on the meta device, from a folder or hub id.

    A weight that is to be quantised is so before the next one is read.

    Raises:
        FileNotFoundError, ValueError: as for `load_weight`, or a shape differs.
    """
    quantized, published = quantized_linears(model), None
    names = list(model.state_dict())
    for path, linear in quantized.items():
        assert isinstance(linear._method, QuantMethod)
        if linear._method.config.published:
            published = linear._method.config
        else:
            names.remove(f"{path}.weight_scale")
    weights = load_weight(model_path, device, dtype, names, published)
    model.load_state_dict(dict(_in_form(weights, quantized)))


def fill_randomly(model: BaseOP, device: torch.device) -> None:
    """Seeded weights of the usual size, made on the device."""
    generator = torch.Generator(device).manual_seed(0)
    quantized = quantized_linears(model)

    def make() -> Iterator[tuple[str, torch.Tensor]]:
        for name, like in model.state_dict().items():
            path, _, kind = name.rpartition(".")
            if path in quantized and kind == "weight":
                like = torch.empty(quantized[path]._local_size, device="meta")
            elif path in quantized and kind == "weight_scale":
                continue
            made = torch.empty_like(like, device=device)
            yield name, made.normal_(0.0, 0.02, generator=generator)

    model.load_state_dict(dict(_in_form(make(), quantized)))


def _in_form(
    weights: Iterable[tuple[str, torch.Tensor]],
    quantized: Mapping[str, _LinearTPImpl],
) -> Iterator[tuple[str, torch.Tensor]]:
    """What is loaded, in the form in which the linears have it."""
    for name, tensor in weights:
        path, _, kind = name.rpartition(".")
        if path not in quantized or kind != "weight":
            yield name, tensor
            continue
        method = quantized[path]._method
        assert isinstance(method, QuantMethod)
        if tensor.dtype == method.value_dtype:
            yield name, method.pack(tensor)
        else:
            weight, scale = method.quantize(tensor)
            yield name, weight
            yield f"{path}.weight_scale", scale
