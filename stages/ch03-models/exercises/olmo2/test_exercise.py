"""OLMo 2: logits and tokens of a random checkpoint, as transformers has them."""

import functools

import pytest
import torch
from transformers import Olmo2Config, Olmo2ForCausalLM

from minisgl.models import create_model
from tests.bare_model import last_logits, load_bare

PROMPTS = [[5, 17, 99, 3], [8], [70, 71, 72, 73, 74, 75, 1, 2]]


@functools.cache
def reference():
    config = Olmo2Config(
        vocab_size=128,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        pad_token_id=0,
        tie_word_embeddings=False,
    )
    torch.manual_seed(0)
    model = Olmo2ForCausalLM(config).eval()
    for name, weight in model.named_parameters():
        spread = 0.5 if "norm" in name else 0.2
        torch.nn.init.normal_(weight, float("norm" in name), spread)
    return model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("olmo2")
    reference().save_pretrained(path)
    return path


def test_the_weights_have_the_names_of_checkpoints(folder):
    _, config = load_bare(folder)
    with torch.device("meta"):
        names = set(create_model(config).state_dict())
    stored = {name for name, _ in reference().named_parameters()}
    for whole, parts in {"qkv": "qkv", "gate_up": ("gate", "up")}.items():
        for part in parts:
            old, new = f".{part}_proj.", f".{whole}_proj."
            stored = {name.replace(old, new) for name in stored}
    assert names == stored


def test_logits_are_those_of_transformers(folder):
    model, config = load_bare(folder)
    got = last_logits(model, config, PROMPTS)
    for row, prompt in zip(got, PROMPTS, strict=True):
        with torch.inference_mode():
            expected = reference()(torch.tensor([prompt])).logits[0, -1]
        torch.testing.assert_close(row, expected, rtol=1e-3, atol=1e-3)


def test_a_batch_is_each_prompt_alone(folder):
    model, config = load_bare(folder)
    together = last_logits(model, config, PROMPTS)
    for row, prompt in zip(together, PROMPTS, strict=True):
        alone = last_logits(model, config, [prompt])[0]
        torch.testing.assert_close(row, alone, rtol=1e-4, atol=1e-4)


@pytest.mark.parity
def test_greedy_tokens_are_those_of_transformers(folder):
    model, config = load_bare(folder)
    mine = list(PROMPTS[0])
    for _ in range(12):
        mine.append(int(last_logits(model, config, [mine])[0].argmax()))
    start = torch.tensor([PROMPTS[0]])
    theirs = reference().generate(
        start,
        attention_mask=torch.ones_like(start),
        do_sample=False,
        max_new_tokens=12,
        eos_token_id=None,
    )
    assert mine == theirs[0].tolist()
