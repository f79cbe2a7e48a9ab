"""Operators against torch and transformers: one by one, a layer, a model."""

import functools

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from transformers import AutoConfig, LlamaConfig, Qwen3Config
from transformers.activations import ACT2FN
from transformers.models.llama.modeling_llama import (
    LlamaRotaryEmbedding,
    apply_rotary_pos_emb,
)
from transformers.models.qwen3.modeling_qwen3 import (
    Qwen3DecoderLayer,
    Qwen3RMSNorm,
    Qwen3RotaryEmbedding,
)

from minisgl import utils
from minisgl.layers import (
    BaseOP,
    LinearColParallelMerged,
    LinearOProj,
    LinearQKVMerged,
    LinearReplicated,
    LinearRowParallel,
    OPList,
    ParallelLMHead,
    RMSNorm,
    RMSNormFused,
    StateLessOP,
    VocabParallelEmbedding,
    gelu_and_mul,
    get_rope,
    set_rope_device,
    silu_and_mul,
)
from tests.handmade import one_token_each
from tests.parity import assert_parity, model_under_test, prompts, reference

CPU = torch.device("cpu")


def noise(*shape, seed=0, dtype=torch.float32):
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=rng).to(dtype)


def fill(op, seed=7):
    """`op` with every weight drawn; small ones, as in a model."""
    for i, weight in enumerate(op.state_dict().values()):
        weight.copy_(noise(*weight.shape, seed=seed + i) / 8)
    return op


def names(op):
    return {name: list(w.shape) for name, w in op.state_dict().items()}


# BaseOP: names, and weights in and out


class Leaf(BaseOP):
    def __init__(self, size, bias=True):
        self.size = size
        self.label = "not a weight"
        self.weight = torch.zeros(size)
        self.bias = torch.zeros(size) if bias else None
        self._table = torch.zeros(99)
        self._other = None

    def forward(self, x):
        return x * self.weight


class Stack(BaseOP):
    def __init__(self):
        self.first = Leaf(2)
        self.rows = OPList([Leaf(3, bias=False), Leaf(4, bias=False)])
        self.rope = Tables()
        self._shared = self.first
        self.plain_list = [Leaf(5)]

    def forward(self, x):
        return self.first.forward(x)


class Tables(StateLessOP):
    def __init__(self):
        self.table = torch.zeros(7)

    def forward(self, x):
        return x


STACK = {
    "first.weight": [2],
    "first.bias": [2],
    "rows.0.weight": [3],
    "rows.1.weight": [4],
}


def stack_weights():
    return {name: noise(*shape) for name, shape in STACK.items()}


def test_weights_are_named_by_the_path_of_attributes():
    assert names(Stack()) == STACK


def test_names_go_below_a_prefix_and_into_a_given_dict():
    given = {"old": torch.zeros(1)}
    found = Leaf(2, bias=False).state_dict(prefix="a.b", result=given)
    assert found is given
    assert list(found) == ["old", "a.b.weight"]
    assert StateLessOP.state_dict(Tables(), result=given) is given
    assert Tables().state_dict() == {}
    assert Leaf(2, bias=False).state_dict(result={}).keys() == {"weight"}


def test_loading_takes_the_tensors_themselves_and_empties_the_dict():
    given = stack_weights()
    kept, stack = dict(given), Stack()
    stack.load_state_dict(given)
    assert given == {}
    loaded = stack.state_dict()
    assert loaded.keys() == kept.keys()
    assert all(loaded[name] is kept[name] for name in kept)
    assert stack.first.weight is kept["first.weight"]


def test_shapes_may_come_from_the_meta_device():
    with torch.device("meta"):
        stack = Stack()
    assert stack.first.weight.is_meta
    stack.load_state_dict(stack_weights())
    assert not any(w.is_meta for w in stack.state_dict().values())


def test_a_missing_weight_is_named():
    given = stack_weights()
    del given["rows.1.weight"]
    with pytest.raises(
        KeyError, match=r"checkpoint has no .*'rows\.1\.weight'"
    ):
        Stack().load_state_dict(given)


def test_a_weight_that_no_operator_takes_is_named():
    given = stack_weights() | {"rows.2.weight": torch.zeros(1)}
    with pytest.raises(KeyError, match=r"model has no .*'rows\.2\.weight'"):
        Stack().load_state_dict(given)


def test_an_operator_without_weights_takes_none():
    Tables().load_state_dict({})
    Tables().load_state_dict({"x": torch.zeros(1)}, _internal=True)
    with pytest.raises(KeyError, match="belongs here: 'table'"):
        Tables().load_state_dict({"table": torch.zeros(7)})


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (torch.zeros(4), r"wants \[3\] .*checkpoint has \[4\]"),
        (torch.zeros(1, 3), r"wants \[3\] .*checkpoint has \[1, 3\]"),
        (torch.zeros(3).half(), r"wants .*float32, .* has .*float16"),
    ],
)
def test_another_shape_or_dtype_is_refused_by_name(wrong, message):
    given = stack_weights() | {"rows.0.weight": wrong}
    with pytest.raises(ValueError, match=rf"'rows\.0\.weight': .*{message}"):
        Stack().load_state_dict(given)


def test_a_part_can_be_loaded_alone_from_below_its_prefix():
    given = {"a.weight": torch.ones(2), "a.bias": torch.ones(2)}
    leaf = Leaf(2)
    leaf.load_state_dict(given, prefix="a")
    assert leaf.forward(torch.full((2,), 3.0)).tolist() == [3.0, 3.0]


def test_a_list_of_operators_is_walked_and_not_called():
    rows = OPList([Leaf(1), Leaf(2)])
    assert [leaf.size for leaf in rows.op_list] == [1, 2]
    with pytest.raises(TypeError, match="walked over"):
        rows.forward(1)


# Linears


LINEARS = [
    (LinearReplicated, (16, 12), 12),
    (LinearOProj, (16, 12), 12),
    (LinearRowParallel, (16, 12), 12),
    (LinearColParallelMerged, (16, [5, 9]), 14),
    (LinearQKVMerged, (16, 4, 6, 3), 48),
]


@pytest.mark.parametrize(("kind", "sizes", "out"), LINEARS)
@pytest.mark.parametrize("has_bias", [False, True])
def test_a_linear_is_torchs(kind, sizes, out, has_bias):
    op = fill(kind(*sizes, has_bias=has_bias))
    expected = {"weight": [out, 16]} | ({"bias": [out]} if has_bias else {})
    assert names(op) == expected
    module = torch.nn.Linear(16, out, bias=has_bias)
    module.load_state_dict(op.state_dict())
    x = noise(2, 3, 16)
    torch.testing.assert_close(op.forward(x), module(x))


@pytest.mark.parametrize("has_bias", [False, True])
def test_q_k_and_v_merged_are_the_three_products(has_bias):
    merged = fill(LinearQKVMerged(32, 8, 6, 2, has_bias=has_bias))
    sizes, x = [48, 16, 16], noise(5, 32)
    biases = merged.bias.split(sizes) if has_bias else [None] * 3
    parts = zip(merged.weight.split(sizes), biases, strict=True)
    expected = [F.linear(x, weight, bias) for weight, bias in parts]
    found = merged.forward(x).split(sizes, dim=-1)
    torch.testing.assert_close(list(found), expected)


def test_gate_and_up_merged_are_the_two_products():
    merged = fill(LinearColParallelMerged(32, [24, 24], has_bias=False))
    gate, up = merged.weight.chunk(2)
    x = noise(5, 32)
    expected = F.silu(F.linear(x, gate)) * F.linear(x, up)
    torch.testing.assert_close(silu_and_mul(merged.forward(x)), expected)


# Activations


@pytest.mark.parametrize(
    ("ours", "name"), [(silu_and_mul, "silu"), (gelu_and_mul, "gelu")]
)
def test_gated_activations_are_those_of_transformers(ours, name):
    x = noise(2, 3, 20)
    expected = ACT2FN[name](x[..., :10]) * x[..., 10:]
    torch.testing.assert_close(ours(x), expected)
    out = torch.empty(2, 3, 10)
    assert ours(x, out) is out
    torch.testing.assert_close(out, expected)


# Norms


def both_norms(dtype, eps=1e-6, kind=RMSNorm):
    theirs = Qwen3RMSNorm(64, eps=eps).to(dtype)
    theirs.weight = torch.nn.Parameter(noise(64, seed=3, dtype=dtype))
    ours = kind(64, eps)
    ours.weight = theirs.weight.detach()
    return ours, theirs


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(64,), (5, 64), (5, 2, 64)])
def test_rms_norm_is_that_of_transformers_to_the_bit(dtype, shape):
    ours, theirs = both_norms(dtype)
    x = 30 * noise(*shape, dtype=dtype)
    found = ours.forward(x)
    assert found.dtype == dtype
    assert torch.equal(found, theirs(x))


def test_eps_is_inside_the_root_and_saves_a_row_of_zeros():
    ours, theirs = both_norms(torch.float32, eps=0.5)
    x = torch.cat([torch.zeros(1, 64), noise(2, 64) / 100])
    assert torch.equal(ours.forward(x), theirs(x))
    assert ours.forward(x)[0].abs().max() == 0


def test_rms_norm_in_place():
    ours, theirs = both_norms(torch.float32)
    whole = noise(4, 128)
    part = whole[:, 64:]
    expected, rest = theirs(part), whole[:, :64].clone()
    assert ours.forward_inplace(part) is None
    assert torch.equal(whole[:, 64:], expected)
    assert torch.equal(whole[:, :64], rest)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_fused_norm_adds_the_residual_first(dtype):
    ours, theirs = both_norms(dtype, kind=RMSNormFused)
    x, residual = noise(5, 64, dtype=dtype), noise(5, 64, seed=1, dtype=dtype)
    normed, stream = ours.forward(x, residual)
    assert torch.equal(stream, x + residual)
    assert torch.equal(normed, theirs(x + residual))
    normed, stream = ours.forward(x)
    assert torch.equal(stream, x)
    assert torch.equal(normed, theirs(x))


# Rotary


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 1024,
}
YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 2048,
}
SCALINGS = {
    "none": {},
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "llama3": LLAMA3,
    "llama3-short": LLAMA3 | {"original_max_position_embeddings": 32},
    "llama3-long": LLAMA3
    | {"factor": 32.0, "original_max_position_embeddings": 8192},
    "llama3-narrow": LLAMA3 | {"low_freq_factor": 2.0, "high_freq_factor": 9},
    "yarn": YARN,
    "yarn-betas": YARN | {"beta_fast": 16, "beta_slow": 2},
    "yarn-smooth": YARN | {"truncate": False},
    "yarn-factor": YARN | {"attention_factor": 0.7},
    "yarn-mscale": YARN | {"mscale": 1.2, "mscale_all_dim": 0.8},
    "yarn-one-mscale": YARN | {"mscale": 1.2},
    "yarn-short": YARN | {"original_max_position_embeddings": 4},
    "yarn-off": YARN | {"factor": 1.0},
    "yarn-less": YARN | {"factor": 0.5},
    "llama3-odd": LLAMA3 | {"factor": 3.0},
    "linear-odd": {"rope_type": "linear", "factor": 3.0},
}
POSITIONS = [0, 1, 100, 5000, 9000]
MAX_POSITION = 9001


def our_rope(scaling, base=100000.0, rotary_dim=64):
    settings = tuple(scaling.items()) if scaling else None
    return get_rope(64, rotary_dim, MAX_POSITION, base, settings)


def their_rope(scaling, base=100000.0):
    config = LlamaConfig(
        hidden_size=256,
        num_attention_heads=4,
        max_position_embeddings=MAX_POSITION,
        rope_parameters={"rope_type": "default"}
        | scaling
        | {"rope_theta": base},
    )
    return LlamaRotaryEmbedding(config)


def cos_and_sin(rope, positions):
    """[positions, 32] each: what it makes of ones in the first half."""
    unit = torch.cat([torch.ones(32), torch.zeros(32)]).expand(
        len(positions), -1
    )
    turned, _ = rope.forward(torch.tensor(positions), unit, unit)
    return turned.chunk(2, dim=-1)


@pytest.mark.parametrize("base", [10000.0, 500000.0])
@pytest.mark.parametrize("scaling", SCALINGS)
def test_c26_cosines_and_sines_are_those_of_transformers(scaling, base):
    found = cos_and_sin(our_rope(SCALINGS[scaling], base), POSITIONS)
    rope = their_rope(SCALINGS[scaling], base)
    expected = rope(torch.ones(1), torch.tensor([POSITIONS]))
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs[0, :, :32], rtol=0, atol=1e-6)


def test_c26_the_scalings_of_this_list_do_differ():
    tables = [
        torch.cat(cos_and_sin(our_rope(scaling), POSITIONS))
        for name, scaling in SCALINGS.items()
        if name not in ("none", "yarn-off", "yarn-one-mscale")
    ]
    for i, table in enumerate(tables):
        assert not any(torch.equal(table, other) for other in tables[:i])


def test_c26_the_older_key_type_names_the_kind_too():
    older = {k: v for k, v in LLAMA3.items() if k != "rope_type"}
    found = cos_and_sin(our_rope(older | {"type": "llama3"}), POSITIONS)
    expected = cos_and_sin(our_rope(LLAMA3), POSITIONS)
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("kind", ["longrope", "dynamic", "mrope", ""])
def test_c26_an_unknown_scaling_is_refused_with_the_known_ones(kind):
    message = (
        rf"'{kind}' is not supported; known: default, linear, llama3, yarn"
    )
    with pytest.raises(ValueError, match=message):
        our_rope({"rope_type": kind, "factor": 2.0})


@pytest.mark.parametrize(
    ("kind", "missing"),
    [("linear", "factor")]
    + [("llama3", name) for name in LLAMA3 if name != "rope_type"]
    + [("yarn", name) for name in YARN if name != "rope_type"],
)
def test_c26_a_scaling_without_a_setting_names_it(kind, missing):
    settings = {k: v for k, v in SCALINGS[kind].items() if k != missing}
    with pytest.raises(ValueError, match=f"'{kind}' states no '{missing}'"):
        our_rope(settings)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rotation_of_query_and_key_is_that_of_transformers(dtype):
    rope, positions = our_rope(LLAMA3), torch.tensor([0, 7, 8, 5000])
    qkv = noise(4, 6 * 64, dtype=dtype)
    q, k, _ = qkv.split([4 * 64, 64, 64], dim=-1)
    before = qkv.clone()
    found = rope.forward(positions, q, k)
    # Theirs has batch and heads in front, and rounds cosines to bfloat16.
    heads = [x.float().view(1, 4, -1, 64).transpose(1, 2) for x in (q, k)]
    cos, sin = their_rope(LLAMA3)(torch.ones(1), positions[None])
    expected = apply_rotary_pos_emb(*heads, cos, sin)
    for mine, theirs, like in zip(found, expected, (q, k), strict=True):
        assert (mine.shape, mine.dtype) == (like.shape, dtype)
        theirs = theirs.transpose(1, 2).reshape(4, -1).to(dtype)
        tolerance = 1e-5 if dtype == torch.float32 else 0.02
        torch.testing.assert_close(mine, theirs, rtol=tolerance, atol=tolerance)
    assert torch.equal(qkv, before), "the inputs stay"


def test_rotation_is_computed_in_float32_and_rounded_once():
    q = noise(3, 128, dtype=torch.bfloat16)
    positions = torch.tensor([1, 50, 4000])
    found, _ = our_rope({}).forward(positions, q, q)
    exact, _ = our_rope({}).forward(positions, q.float(), q.float())
    assert torch.equal(found, exact.bfloat16())


def test_components_past_rotary_dim_stay():
    rope, whole = our_rope({}, rotary_dim=16), get_rope(16, 16, 9001, 100000.0)
    x, positions = noise(3, 2, 64), torch.tensor([0, 5, 9000])
    found = rope.forward(positions, x.flatten(1), x.flatten(1))[0].view(
        3, 2, 64
    )
    assert torch.equal(found[..., 16:], x[..., 16:])
    part = x[..., :16].flatten(1)
    expected, _ = whole.forward(positions, part, part)
    assert torch.equal(found[..., :16].flatten(1), expected)


@pytest.mark.parametrize("rotary_dim", [16, 64])
def test_yarn_ramps_over_the_rotated_part(rotary_dim):
    scaling = YARN | {"original_max_position_embeddings": 64}
    rope = our_rope(scaling, rotary_dim=rotary_dim)
    config = LlamaConfig(
        hidden_size=rotary_dim,
        num_attention_heads=1,
        max_position_embeddings=MAX_POSITION,
        rope_parameters=scaling | {"rope_theta": 100000.0},
    )
    cos, _ = LlamaRotaryEmbedding(config)(torch.ones(1), torch.tensor([[100]]))
    half = rotary_dim // 2
    unit = torch.zeros(1, 64)
    unit[:, :half] = 1
    found, _ = rope.forward(torch.tensor([100]), unit, unit)
    expected = cos[0, :, :half]
    torch.testing.assert_close(found[:, :half], expected, rtol=0, atol=1e-6)


def test_a_position_past_the_table_is_an_error():
    x = noise(1, 64)
    our_rope({}).forward(torch.tensor([MAX_POSITION - 1]), x, x)
    with pytest.raises(IndexError):
        our_rope({}).forward(torch.tensor([MAX_POSITION]), x, x)


def test_layers_share_a_table_and_it_is_no_weight():
    assert our_rope(LLAMA3) is our_rope(dict(LLAMA3))
    assert our_rope(LLAMA3) is not our_rope({})
    assert our_rope({}).state_dict() == {}


def test_tables_are_made_where_set_rope_device_says():
    before = our_rope({})
    x = torch.zeros(1, 64, device="meta")
    try:
        set_rope_device(torch.device("meta"))
        moved = our_rope({})
        assert moved is not before
        positions = torch.zeros(1, dtype=torch.long, device="meta")
        assert moved.forward(positions, x, x)[0].is_meta
        set_rope_device(CPU)
        with torch.device("meta"):  # as when a model is built for its shapes
            real = our_rope(YARN)
        assert cos_and_sin(real, [0])[0].device == CPU
    finally:
        set_rope_device(CPU)


# Embedding and head


def head_rows(head, x):
    with one_token_each(len(x)):
        return head.forward(x)


def test_embedding_selects_rows():
    op = fill(VocabParallelEmbedding(11, 4))
    assert names(op) == {"weight": [11, 4]}
    ids = torch.tensor([10, 0, 3, 3], dtype=torch.int32)
    assert torch.equal(op.forward(ids), op.weight[[10, 0, 3, 3]])


@pytest.mark.parametrize("bias", [False, True])
def test_a_head_of_its_own(bias):
    embedding = fill(VocabParallelEmbedding(11, 4))
    head = fill(ParallelLMHead(11, 4, bias=bias, tied_embedding=embedding), 20)
    extra = {"bias": [11]} if bias else {}
    assert names(head) == {"weight": [11, 4]} | extra
    x = noise(3, 4)
    expected = x @ head.weight.T + (head.bias if bias else 0)
    torch.testing.assert_close(head_rows(head, x), expected)


def test_c25_a_tied_head_has_no_weight_and_follows_the_embedding():
    embedding = VocabParallelEmbedding(11, 4)
    tied = {"tie_word_embeddings": True, "tied_embedding": embedding}
    head = ParallelLMHead(11, 4, **tied)
    assert head.state_dict() == {}
    head.load_state_dict({})
    # Loading puts another tensor into the embedding; the head must use that one.
    embedding.load_state_dict({"weight": noise(11, 4)})
    x = noise(3, 4, seed=1)
    expected = x @ embedding.weight.T
    torch.testing.assert_close(head_rows(head, x), expected)
    assert names(ParallelLMHead(11, 4, bias=True, **tied)) == {"bias": [11]}


def test_c25_a_tied_head_refuses_a_weight_and_needs_an_embedding():
    embedding = VocabParallelEmbedding(11, 4)
    head = ParallelLMHead(
        11, 4, tie_word_embeddings=True, tied_embedding=embedding
    )
    with pytest.raises(KeyError, match="model has no weight 'weight'"):
        head.load_state_dict({"weight": noise(11, 4)})
    with pytest.raises(ValueError, match="needs its tied_embedding"):
        ParallelLMHead(11, 4, tie_word_embeddings=True)


# Helpers


@pytest.mark.parametrize(
    ("a", "b", "ceil", "up", "down"),
    [(0, 4, 0, 0, 0), (1, 4, 1, 4, 0), (4, 4, 1, 4, 4), (5, 4, 2, 8, 4)],
)
def test_integer_helpers(a, b, ceil, up, down):
    assert utils.div_ceil(a, b) == ceil
    assert utils.align_ceil(a, b) == up
    assert utils.align_down(a, b) == down


def test_even_division_refuses_a_rest():
    assert utils.div_even(12, 4) == 3
    with pytest.raises(ValueError, match=r"^9 cannot be divided evenly by 4$"):
        utils.div_even(9, 4)


@pytest.mark.parametrize("cuda", [False, True])
def test_pick_device(monkeypatch, cuda):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    assert utils.pick_device("cpu") == CPU
    assert utils.pick_device("auto") == torch.device("cuda" if cuda else "cpu")
    if cuda:
        assert utils.pick_device("cuda:1") == torch.device("cuda:1")
    else:
        with pytest.raises(ValueError, match="no CUDA device here"):
            utils.pick_device("cuda:1")
    with pytest.raises(ValueError, match="'tpu' is not supported; use auto"):
        utils.pick_device("tpu")


# A layer and a model by hand


class Attention(BaseOP):
    """Full causal attention over one prompt, from the operators."""

    def __init__(self, config, has_norms):
        dim = config.head_dim
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.qkv_proj = LinearQKVMerged(
            config.hidden_size, dim, heads, kv_heads, has_bias=False
        )
        self.o_proj = LinearOProj(heads * dim, config.hidden_size, False)
        self.q_norm = RMSNorm(dim, config.rms_norm_eps) if has_norms else None
        self.k_norm = RMSNorm(dim, config.rms_norm_eps) if has_norms else None
        self._dim, self._sizes = (
            dim,
            [heads * dim, kv_heads * dim, kv_heads * dim],
        )
        base = config.rope_parameters["rope_theta"]
        self._rope = get_rope(dim, dim, config.max_position_embeddings, base)

    def forward(self, x, positions):
        q, k, v = self.qkv_proj.forward(x).split(self._sizes, dim=-1)
        if self.q_norm is not None:
            q = self.q_norm.forward(self._heads(q)).flatten(1)
            k = self.k_norm.forward(self._heads(k)).flatten(1)
        q, k = self._rope.forward(positions, q, k)
        q, k, v = (self._heads(p).transpose(0, 1)[None] for p in (q, k, v))
        out = F.scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=True
        )
        return self.o_proj.forward(out[0].transpose(0, 1).flatten(1))

    def _heads(self, x):
        return x.reshape(len(x), -1, self._dim)


class MLP(BaseOP):
    def __init__(self, config):
        hidden, wide = config.hidden_size, config.intermediate_size
        self.gate_up_proj = LinearColParallelMerged(hidden, [wide, wide], False)
        self.down_proj = LinearRowParallel(wide, hidden, has_bias=False)

    def forward(self, x):
        return self.down_proj.forward(
            silu_and_mul(self.gate_up_proj.forward(x))
        )


class Layer(BaseOP):
    def __init__(self, config, has_norms):
        self.self_attn = Attention(config, has_norms)
        self.mlp = MLP(config)
        size, eps = config.hidden_size, config.rms_norm_eps
        self.input_layernorm = RMSNormFused(size, eps)
        self.post_attention_layernorm = RMSNormFused(size, eps)

    def forward(self, x, residual, positions):
        x, residual = self.input_layernorm.forward(x, residual)
        x = self.self_attn.forward(x, positions)
        x, residual = self.post_attention_layernorm.forward(x, residual)
        return self.mlp.forward(x), residual


class Decoder(BaseOP):
    def __init__(self, config, has_norms):
        size = config.hidden_size
        self.embed_tokens = VocabParallelEmbedding(config.vocab_size, size)
        count = config.num_hidden_layers
        self.layers = OPList([Layer(config, has_norms) for _ in range(count)])
        self.norm = RMSNormFused(size, config.rms_norm_eps)

    def forward(self, ids):
        x, residual = self.embed_tokens.forward(ids), None
        positions = torch.arange(len(ids))
        for layer in self.layers.op_list:
            x, residual = layer.forward(x, residual, positions)
        return self.norm.forward(x, residual)[0]


class Model(BaseOP):
    def __init__(self, config, has_norms):
        self.model = Decoder(config, has_norms)
        self.lm_head = ParallelLMHead(
            config.vocab_size,
            config.hidden_size,
            tie_word_embeddings=config.tie_word_embeddings,
            tied_embedding=self.model.embed_tokens,
        )

    def forward(self, ids):
        return head_rows(self.lm_head, self.model.forward(ids)[-1:])[0]


MERGED = {"qkv_proj": ["q_proj", "k_proj", "v_proj"]} | {
    "gate_up_proj": ["gate_proj", "up_proj"]
}


def merge(weights):
    """q, k, v and gate, up stacked, as the merged linears name them."""
    found = dict(weights)
    for name in weights:
        for new, parts in MERGED.items():
            if f".{parts[0]}." in f".{name}":
                at = [name.replace(parts[0], part) for part in parts]
                stacked = torch.cat([found.pop(part) for part in at])
                found[name.replace(parts[0], new)] = stacked
    return found


@torch.inference_mode()
def test_a_layer_from_operators_is_the_layer_of_transformers():
    config = Qwen3Config(
        hidden_size=48,
        intermediate_size=80,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=16,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 5000.0},
        max_position_embeddings=64,
        attn_implementation="eager",
    )
    theirs = Qwen3DecoderLayer(config, layer_idx=0).eval()
    weights = fill_module(theirs)
    ours = Layer(config, has_norms=True)
    ours.load_state_dict(merge(weights))
    x, positions = noise(9, 48), torch.arange(9)
    mask = torch.full((9, 9), -torch.inf).triu(1)[None, None]
    cos_sin = Qwen3RotaryEmbedding(config)(x[None], positions[None])
    expected = theirs(x[None], attention_mask=mask, position_embeddings=cos_sin)
    added, stream = ours.forward(x, None, positions)
    torch.testing.assert_close(
        added + stream, expected[0], rtol=1e-5, atol=1e-5
    )


def fill_module(module):
    weights = {}
    for i, (name, weight) in enumerate(module.state_dict().items()):
        weight.copy_(noise(*weight.shape, seed=i) / 4)
        weights[name] = weight.clone()
    return weights


@functools.cache
def model_by_hand():
    folder = model_under_test("qwen3-tiny")
    weights = load_file(folder / "model.safetensors")
    weights = merge({name: w.float() for name, w in weights.items()})
    has_norms = "model.layers.0.self_attn.q_norm.weight" in weights
    config = AutoConfig.from_pretrained(folder)
    if getattr(config, "head_dim", None) is None:
        config.head_dim = config.hidden_size // config.num_attention_heads
    with torch.device("meta"):
        model = Model(config, has_norms)
    model.load_state_dict(weights)
    return model


@pytest.mark.parity
@pytest.mark.parametrize("which", [1, 2, 4])
@torch.inference_mode()
def test_parity_of_a_model_made_of_these_operators(which):
    folder = model_under_test("qwen3-tiny")
    prompt = prompts(folder)[which]
    ids = list(prompt)
    for _ in range(16):
        logits = model_by_hand().forward(torch.tensor(ids, dtype=torch.int32))
        ids.append(int(logits.argmax()))
    assert_parity(ids[len(prompt) :], reference(folder, prompt, 16))


def test_the_model_is_found_under_the_names_of_the_checkpoint():
    found = set(model_by_hand().state_dict())
    assert "model.embed_tokens.weight" in found
    assert "model.layers.0.self_attn.qkv_proj.weight" in found
    assert "model.layers.0.mlp.gate_up_proj.weight" in found
    assert not any("rope" in name or "lm_head" in name for name in found)
