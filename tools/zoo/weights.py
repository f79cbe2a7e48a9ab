"""Random weights of the tiny checkpoints, equal on every machine.

Each tensor has its own stream, named by the checkpoint's seed and the tensor's name,
so that a value does not depend on the order in which tensors are made. Spreads are
measured ones: with them greedy text wanders instead of repeating one token, and the
noise between prefill and decode stays far below the gap of the two best tokens.
"""

import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
Shape = tuple[int, ...]
EMBEDDING_STD = 0.5


def make_weights(config: dict[str, Any], seed: int) -> dict[str, Array]:
    """All tensors of a checkpoint, float32, in the order of its layers."""
    qwen3_5 = config["model_type"].startswith("qwen3_5")
    return {
        name: _draw(name, shape, seed, qwen3_5)
        for name, shape in _shapes(config)
    }


def _draw(name: str, shape: Shape, seed: int, qwen3_5: bool) -> Array:
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    # float64 first: numpy draws float32 with other, less portable, arithmetic.
    noise = rng.standard_normal(shape)
    kind = name.split(".")[-2]
    if name.endswith("A_log"):
        values = np.log(rng.uniform(0.5, 8.0, shape))
    elif name.endswith("dt_bias"):
        values = noise
    elif name.endswith("bias"):
        values = 0.5 * noise
    elif kind == "norm" and "linear_attn" in name:
        values = 1.0 + 0.25 * noise
    elif kind.endswith("norm"):
        values = 1.0 + 0.25 * noise
        if qwen3_5:
            # It stores the distance of its norm weights from one. Only a quarter of
            # its head turns with the position: sharper attention lets that show.
            values = (0.5 if kind in ("q_norm", "k_norm") else 0.25) * noise
    elif kind in ("embed_tokens", "lm_head"):
        values = EMBEDDING_STD * noise
    else:
        into_residual = kind in ("o_proj", "down_proj", "out_proj")
        gain = 2.0 if not qwen3_5 else 1.0
        if into_residual:
            gain *= 2.0 if qwen3_5 and kind != "o_proj" else 4.0
        fan_in = int(np.prod(shape[1:]))
        values = gain / np.sqrt(fan_in) * noise
    return values.astype(np.float32)


def _shapes(config: dict[str, Any]) -> Iterator[tuple[str, Shape]]:
    hidden, vocab = config["hidden_size"], config["vocab_size"]
    yield "model.embed_tokens.weight", (vocab, hidden)
    kinds = config.get("layer_types") or ["full"] * config["num_hidden_layers"]
    for layer, kind in enumerate(kinds):
        prefix = f"model.layers.{layer}."
        attention = (
            _linear_attention if kind == "linear_attention" else _attention
        )
        yield prefix + "input_layernorm.weight", (hidden,)
        for name, shape in (*attention(config), *_mlp(config)):
            yield prefix + name, shape
        yield prefix + "post_attention_layernorm.weight", (hidden,)
    yield "model.norm.weight", (hidden,)
    if not config["tie_word_embeddings"]:
        yield "lm_head.weight", (vocab, hidden)


def _attention(config: dict[str, Any]) -> Iterator[tuple[str, Shape]]:
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    dim = config.get("head_dim", hidden // heads)
    q_rows, kv_rows = heads * dim, config["num_key_value_heads"] * dim
    family = config["model_type"]
    gate = 2 if family.startswith("qwen3_5") else 1
    sizes = (("q", gate * q_rows), ("k", kv_rows), ("v", kv_rows))
    for letter, rows in sizes:
        yield f"self_attn.{letter}_proj.weight", (rows, hidden)
        if family == "qwen2":
            yield f"self_attn.{letter}_proj.bias", (rows,)
    yield "self_attn.o_proj.weight", (hidden, q_rows)
    if family.startswith("qwen3"):
        yield "self_attn.q_norm.weight", (dim,)
        yield "self_attn.k_norm.weight", (dim,)


def _linear_attention(config: dict[str, Any]) -> Iterator[tuple[str, Shape]]:
    hidden, value_heads = (
        config["hidden_size"],
        config["linear_num_value_heads"],
    )
    value_dim = config["linear_value_head_dim"]
    values = value_heads * value_dim
    keys = config["linear_num_key_heads"] * config["linear_key_head_dim"]
    channels = 2 * keys + values
    yield "linear_attn.A_log", (value_heads,)
    yield "linear_attn.dt_bias", (value_heads,)
    yield (
        "linear_attn.conv1d.weight",
        (channels, 1, config["linear_conv_kernel_dim"]),
    )
    yield "linear_attn.in_proj_qkv.weight", (channels, hidden)
    yield "linear_attn.in_proj_z.weight", (values, hidden)
    yield "linear_attn.in_proj_b.weight", (value_heads, hidden)
    yield "linear_attn.in_proj_a.weight", (value_heads, hidden)
    yield "linear_attn.norm.weight", (value_dim,)
    yield "linear_attn.out_proj.weight", (hidden, values)


def _mlp(config: dict[str, Any]) -> Iterator[tuple[str, Shape]]:
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    prefixes = ["mlp."]
    if config.get("num_experts"):
        inner = config["moe_intermediate_size"]
        prefixes = [f"mlp.experts.{i}." for i in range(config["num_experts"])]
        yield "mlp.gate.weight", (config["num_experts"], hidden)
    if shared := config.get("shared_expert_intermediate_size"):
        yield "mlp.shared_expert_gate.weight", (1, hidden)
        yield "mlp.shared_expert.gate_proj.weight", (shared, hidden)
        yield "mlp.shared_expert.up_proj.weight", (shared, hidden)
        yield "mlp.shared_expert.down_proj.weight", (hidden, shared)
    for prefix in prefixes:
        yield prefix + "gate_proj.weight", (inner, hidden)
        yield prefix + "up_proj.weight", (inner, hidden)
        yield prefix + "down_proj.weight", (hidden, inner)
