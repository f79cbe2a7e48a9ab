"""A Hugging Face folder out of a Llama-type GGUF file, weights dequantised."""

from pathlib import Path
from typing import Any

from tools.zoo.gguf_tokenizer import gguf_tokenizer, gguf_tokenizer_config
from tools.zoo.places import ModelError
from tools.zoo.tiny import write_json

BLOCK_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def convert(gguf: Path, folder: Path) -> None:
    """Writes config, tokenizer and bfloat16 weights of a Llama-type GGUF file."""
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise ModelError(
            "converting a GGUF file needs the gguf package: pip install gguf"
        ) from error
    reader = GGUFReader(gguf)
    fields = {key: field.contents() for key, field in reader.fields.items()}
    config = config_json(fields)
    write_json(folder / "config.json", config)
    ends = {key: config[key] for key in ("bos_token_id", "eos_token_id")}
    pad = {"pad_token_id": fields["tokenizer.ggml.padding_token_id"]}
    write_json(folder / "generation_config.json", ends | pad)
    write_json(folder / "tokenizer.json", gguf_tokenizer(fields))
    write_json(folder / "tokenizer_config.json", gguf_tokenizer_config(fields))
    write_weights(reader, config, folder / "model.safetensors")


def config_json(fields: dict[str, Any]) -> dict[str, Any]:
    """config.json of a Llama model from GGUF metadata; the head is tied."""
    heads = fields["llama.attention.head_count"]
    # The file holds float32: 9.999999747378752e-06 is the shortest form of 1e-05.
    epsilon = float(f"{fields['llama.attention.layer_norm_rms_epsilon']:.6g}")
    return {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": fields["tokenizer.ggml.bos_token_id"],
        "dtype": "float32",
        "eos_token_id": fields["tokenizer.ggml.eos_token_id"],
        "head_dim": fields["llama.rope.dimension_count"],
        "hidden_act": "silu",
        "hidden_size": fields["llama.embedding_length"],
        "initializer_range": 0.02,
        "intermediate_size": fields["llama.feed_forward_length"],
        "max_position_embeddings": fields["llama.context_length"],
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": heads,
        "num_hidden_layers": fields["llama.block_count"],
        "num_key_value_heads": fields["llama.attention.head_count_kv"],
        "rms_norm_eps": epsilon,
        "rope_parameters": {
            "rope_theta": fields["llama.rope.freq_base"],
            "rope_type": "default",
        },
        "tie_word_embeddings": True,
        "use_cache": True,
        "vocab_size": fields["llama.vocab_size"],
    }


def write_weights(reader: Any, config: dict[str, Any], path: Path) -> None:
    """Dequantises every tensor to float32 and stores it rounded to bfloat16."""
    import torch
    from gguf.quants import dequantize
    from safetensors.torch import save

    heads = {
        "attn_q": config["num_attention_heads"],
        "attn_k": config["num_key_value_heads"],
    }
    tensors = {}
    for tensor in reader.tensors:
        values = torch.tensor(dequantize(tensor.data, tensor.tensor_type))
        kind = tensor.name.split(".")[-2]
        if kind in heads:
            values = unpermute(values, heads[kind])
        tensors[hf_name(tensor.name)] = values.to(torch.bfloat16).contiguous()
    path.write_bytes(save(tensors, {"format": "pt"}))


def unpermute(weight: Any, heads: int) -> Any:
    """Rows of a q or k projection from GGUF's order to Hugging Face's.

    GGUF keeps the two numbers that RoPE turns together next to each other; Hugging
    Face keeps them half a head apart.
    """
    rows, columns = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, columns)
    return pairs.transpose(1, 2).reshape(rows, columns)


def hf_name(name: str) -> str:
    """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`."""
    whole = {
        "token_embd.weight": "model.embed_tokens.weight",
        "output_norm.weight": "model.norm.weight",
    }
    if name in whole:
        return whole[name]
    _, layer, kind, end = name.split(".")
    return f"model.layers.{layer}.{BLOCK_NAMES[kind]}.{end}"
