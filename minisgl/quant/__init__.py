"""Weights in fewer bits; the names of the formats alone do not load torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from minisgl.quant.config import QuantConfig
from minisgl.utils import Registry

if TYPE_CHECKING:
    from minisgl.quant.base import QuantMethod

__all__ = [
    "SUPPORTED_KV_DTYPES",
    "SUPPORTED_QUANTIZATION",
    "QuantConfig",
    "create_quant_method",
    "quantize_on_load",
]

SUPPORTED_KV_DTYPES = ("auto", "fp8_e4m3")
"""What keys and values can be kept in; auto is what is computed in."""


class MethodCreator(Protocol):
    def __call__(self, config: QuantConfig) -> QuantMethod: ...


SUPPORTED_QUANTIZATION = Registry[MethodCreator]("quantization")

# Weights to a scale where a checkpoint is quantised on load; 0 is a whole row.
_GROUP_SIZES = {"int4": 32}


@SUPPORTED_QUANTIZATION.register("fp8")
def create_fp8(config: QuantConfig) -> QuantMethod:
    from minisgl.quant.fp8 import Fp8Method

    return Fp8Method(config)


@SUPPORTED_QUANTIZATION.register("int8")
def create_int8(config: QuantConfig) -> QuantMethod:
    from minisgl.quant.integers import Int8Method

    return Int8Method(config)


@SUPPORTED_QUANTIZATION.register("int4")
def create_int4(config: QuantConfig) -> QuantMethod:
    from minisgl.quant.integers import Int4Method

    return Int4Method(config)


def create_quant_method(config: QuantConfig) -> QuantMethod:
    """What the linears of a model with this configuration share."""
    return SUPPORTED_QUANTIZATION[config.format](config)


def quantize_on_load(format: str, stored: QuantConfig | None) -> QuantConfig:
    """The configuration for `format` and a checkpoint in full precision.

    stored: what its config.json says.

    Raises:
        ValueError: an unknown format, or the checkpoint is quantised already.
    """
    SUPPORTED_QUANTIZATION.assert_supported(format)
    if stored is not None:
        raise ValueError(
            f"quantization {format!r} is for a checkpoint in full precision, "
            f"and this one is in {stored.format} already; leave it out"
        )
    return QuantConfig(format, _GROUP_SIZES.get(format, 0))
