"""Operators: functions with weights, without the machinery of nn.Module."""

from minisgl.layers.activation import gelu_and_mul, silu_and_mul
from minisgl.layers.attention import AttentionLayer
from minisgl.layers.base import BaseOP, OPList, StateLessOP
from minisgl.layers.embedding import ParallelLMHead, VocabParallelEmbedding
from minisgl.layers.linear import (
    LinearColParallelMerged,
    LinearOProj,
    LinearQKVMerged,
    LinearReplicated,
    LinearRowParallel,
)
from minisgl.layers.moe import MoELayer
from minisgl.layers.norm import RMSNorm, RMSNormFused
from minisgl.layers.rotary import get_rope, set_rope_device

__all__ = [
    "AttentionLayer",
    "BaseOP",
    "LinearColParallelMerged",
    "LinearOProj",
    "LinearQKVMerged",
    "LinearReplicated",
    "LinearRowParallel",
    "MoELayer",
    "OPList",
    "ParallelLMHead",
    "RMSNorm",
    "RMSNormFused",
    "StateLessOP",
    "VocabParallelEmbedding",
    "gelu_and_mul",
    "get_rope",
    "set_rope_device",
    "silu_and_mul",
]
