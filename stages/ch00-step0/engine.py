"""Step 0, the smallest engine: a model folder in, greedy tokens out.

Letters in shapes: T new tokens, S tokens so far (with the new ones), E hidden
size, H query heads, K key/value heads, D numbers per head, V vocabulary size.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3")
Cache = dict[str, tuple[Tensor, Tensor]]  # per layer: keys, values [K, S, D]


def read_config(path: Path) -> dict:
    """config.json, with head_dim, rope_theta and eos (a set) filled in."""
    config = json.loads((path / "config.json").read_text())
    get = config.get  # None where the key is absent
    rope = get("rope_parameters") or get("rope_scaling") or {}
    kind = rope.get("rope_type") or rope.get("type") or "default"
    for what, found in {
        f"model type {get('model_type')}": get("model_type") not in MODEL_TYPES,
        f"RoPE of type {kind}": kind != "default",
        "local window": get("use_sliding_window", 1) and get("sliding_window"),
        "quantised weights": get("quantization_config"),
    }.items():
        if found:
            raise ValueError(f"{path.name}: step 0 cannot run its {what}")
    heads = config["num_attention_heads"]
    config["head_dim"] = get("head_dim") or config["hidden_size"] // heads
    config["rope_theta"] = rope.get("rope_theta") or get("rope_theta", 10000.0)
    config["eos"] = set()
    for file in [path / "config.json", *path.glob("generation_config.json")]:
        ids = json.loads(file.read_text()).get("eos_token_id")
        config["eos"].update([ids] if isinstance(ids, int) else ids or [])
    return config


def read_weights(path: Path, device: str, dtype: torch.dtype) -> dict:
    """Every tensor of model.safetensors, or of the shards its index lists."""
    files, index = {"model.safetensors"}, path / "model.safetensors.index.json"
    if index.exists():
        files = set(json.loads(index.read_text())["weight_map"].values())
    shards = [load_file(path / file, device=device) for file in files]
    return {name: t.to(dtype) for shard in shards for name, t in shard.items()}


def rotate(x: Tensor, start: int, theta: float) -> Tensor:
    """RoPE: turn the pairs (i, i + D/2) of x [heads, T, D] from `start` on."""
    steps = torch.arange(0, x.shape[2], 2, device=x.device).float() / x.shape[2]
    positions = torch.arange(start, start + x.shape[1], device=x.device)
    angles = positions[:, None] * (1.0 / theta**steps)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention: q [H, T, D] on k and v [K, S, D] gives [T, H * D]."""
    k, v = (p.repeat_interleave(len(q) // len(p), dim=0) for p in (k, v))
    scores = q @ k.transpose(1, 2) * q.shape[2] ** -0.5
    future = torch.ones_like(scores).triu(k.shape[1] - q.shape[1] + 1).bool()
    shares = scores.masked_fill(future, -torch.inf).float().softmax(dim=-1)
    return (shares.to(v.dtype) @ v).transpose(0, 1).flatten(1)


class Engine:
    """One model in memory: its config and its weights by name."""

    def __init__(self, path: Path, device: str, dtype: torch.dtype) -> None:
        self.config = read_config(path)
        self.weights = read_weights(path, device, dtype)

    def linear(self, name: str, x: Tensor) -> Tensor:
        bias = self.weights.get(f"{name}.bias")  # Qwen2's q, k and v have one
        return F.linear(x, self.weights[f"{name}.weight"], bias)

    def norm(self, name: str, x: Tensor) -> Tensor:
        """RMSNorm: scale x to a mean square of 1, in float32; then weigh it."""
        square = x.float().square().mean(-1, keepdim=True)
        scale = torch.rsqrt(square + self.config["rms_norm_eps"])
        return self.weights[f"{name}.weight"] * (x.float() * scale).to(x.dtype)

    def attention(self, at: str, x: Tensor, cache: Cache) -> Tensor:
        """Each token of x [T, E] reads itself and all before; `cache` grows."""
        dim, theta = self.config["head_dim"], self.config["rope_theta"]
        q, k, v = (self.linear(f"{at}.{p}_proj", x) for p in "qkv")
        q, k, v = (p.unflatten(1, (-1, dim)).transpose(0, 1) for p in (q, k, v))
        if self.config["model_type"] == "qwen3":
            q, k = self.norm(f"{at}.q_norm", q), self.norm(f"{at}.k_norm", k)
        old_k, old_v = cache.get(at, (k[:, :0], v[:, :0]))
        q, k = (rotate(p, old_k.shape[1], theta) for p in (q, k))
        cache[at] = k, v = torch.cat((old_k, k), 1), torch.cat((old_v, v), 1)
        return self.linear(f"{at}.o_proj", attend(q, k, v))

    def mlp(self, at: str, x: Tensor) -> Tensor:
        gate, up = (self.linear(f"{at}.{p}_proj", x) for p in ("gate", "up"))
        return self.linear(f"{at}.down_proj", F.silu(gate) * up)

    def forward(self, tokens: list[int], cache: Cache) -> Tensor:
        """Run T new tokens through the layers; logits [V] of the next one."""
        x = self.weights["model.embed_tokens.weight"][tokens]
        for i in range(self.config["num_hidden_layers"]):
            at = f"model.layers.{i}"
            h = self.norm(f"{at}.input_layernorm", x)
            x = x + self.attention(f"{at}.self_attn", h, cache)
            h = self.norm(f"{at}.post_attention_layernorm", x)
            x = x + self.mlp(f"{at}.mlp", h)
        tied = self.config.get("tie_word_embeddings")
        head = "model.embed_tokens" if tied else "lm_head"
        return self.linear(head, self.norm("model.norm", x[-1]))

    @torch.inference_mode()
    def generate(self, tokens: list[int], max_tokens: int) -> Iterator[int]:
        """Yield the likeliest next token until an end token or `max_tokens`."""
        cache: Cache = {}
        for _ in range(max_tokens):
            tokens = [int(self.forward(tokens, cache).argmax())]
            yield tokens[0]
            if tokens[0] in self.config["eos"]:
                return
