"""The six tiny checkpoints: configuration, seed, number of files, chat style.

Both configuration forms occur on purpose: `rope_parameters` and `dtype` as
transformers v5 writes them, `rope_theta`, `rope_scaling` and `torch_dtype` as v4 did.
"""

from tools.zoo.chat import STYLES, VOCAB_SIZE
from tools.zoo.recipe import Recipe

RECIPES: dict[str, Recipe] = {
    "qwen3-tiny": Recipe(
        "Qwen3: q/k norm, tied head",
        seed=10,
        style=STYLES["chatml"],
        config={
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "attention_bias": False,
            "dtype": "float32",
            "head_dim": 64,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1000000.0,
            },
            "tie_word_embeddings": True,
        },
    ),
    "qwen2-tiny": Recipe(
        "Qwen2: biases on q, k and v, tied head, more rows than tokens",
        seed=6,
        style=STYLES["chatml"],
        config={
            "architectures": ["Qwen2ForCausalLM"],
            "model_type": "qwen2",
            "hidden_size": 256,
            "rope_theta": 1000000.0,
            "tie_word_embeddings": True,
            "torch_dtype": "float32",
            "use_sliding_window": False,
            "vocab_size": VOCAB_SIZE + 64,
        },
    ),
    "llama3-tiny": Recipe(
        "Llama 3: scaled RoPE from 32 positions on, head of its own",
        seed=8,
        style=STYLES["llama3"],
        config={
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "attention_bias": False,
            "head_dim": 64,
            "mlp_bias": False,
            "rms_norm_eps": 1e-5,
            "rope_scaling": {
                "factor": 8.0,
                "high_freq_factor": 4.0,
                "low_freq_factor": 1.0,
                "original_max_position_embeddings": 32,
                "rope_type": "llama3",
            },
            "rope_theta": 500000.0,
            "tie_word_embeddings": False,
            "torch_dtype": "float32",
        },
    ),
    "mistral-tiny": Recipe(
        "Mistral: head_dim 48 where hidden / heads is 32, three files",
        seed=7,
        style=STYLES["mistral"],
        shards=3,
        config={
            "architectures": ["MistralForCausalLM"],
            "model_type": "mistral",
            "head_dim": 48,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "sliding_window": None,
            "tie_word_embeddings": False,
            "torch_dtype": "float32",
        },
    ),
    "qwen3-moe-tiny": Recipe(
        "Qwen3-MoE: 8 experts, 2 of them a token, two files",
        seed=2,
        style=STYLES["chatml"],
        shards=2,
        config={
            "architectures": ["Qwen3MoeForCausalLM"],
            "model_type": "qwen3_moe",
            "attention_bias": False,
            "decoder_sparse_step": 1,
            "dtype": "float32",
            "head_dim": 64,
            "mlp_only_layers": [],
            "moe_intermediate_size": 96,
            "norm_topk_prob": True,
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1000000.0,
            },
            "tie_word_embeddings": False,
        },
    ),
    "qwen3.5-tiny": Recipe(
        "Qwen3.5: linear and full attention in turn",
        seed=19,
        style=STYLES["chatml"],
        config={
            "architectures": ["Qwen3_5ForCausalLM"],
            "model_type": "qwen3_5_text",
            "attention_bias": False,
            "dtype": "float32",
            "head_dim": 64,
            "layer_types": ["linear_attention", "full_attention"] * 2,
            "linear_conv_kernel_dim": 4,
            "linear_key_head_dim": 64,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_value_head_dim": 64,
            "num_hidden_layers": 4,
            "rope_parameters": {
                "mrope_interleaved": True,
                "mrope_section": [3, 3, 2],
                "partial_rotary_factor": 0.25,
                "rope_theta": 10000.0,
                "rope_type": "default",
            },
            "tie_word_embeddings": True,
        },
    ),
}
