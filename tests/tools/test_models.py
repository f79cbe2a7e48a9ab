"""The checkpoint zoo: same bytes everywhere, real folders, clear errors."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM

from tools.models import KNOWN, model_path
from tools.stagekit import load_tokenizer, measured
from tools.zoo import tiny
from tools.zoo.places import ModelError
from tools.zoo.recipes import RECIPES

ROOT = Path(__file__).resolve().parents[2]
TINY = sorted(RECIPES)
TEXT = "Hello world, it's 2024 \n\n  你好 😀 café"


def run_cli(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "tools" / "models.py"), *args],
        capture_output=True,
        text=True,
        env=os.environ | env,
        timeout=120,
    )


def tensors_of(folder: Path) -> dict[str, torch.Tensor]:
    found = {}
    for path in folder.glob("*.safetensors"):
        with safe_open(path, "pt") as file:
            found |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    return found


@pytest.mark.parametrize("name", TINY)
def test_made_twice_gives_the_recorded_bytes(name, tmp_path):
    for copy in ("a", "b"):
        tiny.write_tiny(RECIPES[name], tmp_path / copy)
    first, second = tiny.digest(tmp_path / "a"), tiny.digest(tmp_path / "b")
    assert first == second == tiny.recorded_digest(name)
    size = sum(file.stat().st_size for file in (tmp_path / "a").iterdir())
    assert size < 6_000_000


def test_a_damaged_checkpoint_is_made_anew(tmp_path, monkeypatch):
    monkeypatch.setenv("MINISGL_MODELS", str(tmp_path))
    config = model_path("qwen3-tiny") / "config.json"
    good = config.read_bytes()
    config.write_text("{}")
    assert model_path("qwen3-tiny") == config.parent
    assert config.read_bytes() == good
    assert [path.name for path in tmp_path.iterdir()] == ["qwen3-tiny"]


def test_other_bytes_than_recorded_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("MINISGL_MODELS", str(tmp_path))
    monkeypatch.setattr(tiny, "recorded_digest", lambda name: "0" * 64)
    with pytest.raises(ModelError, match="digests"):
        model_path("qwen3-tiny")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", TINY)
def test_transformers_takes_every_tensor_in_float32(name):
    model, info = AutoModelForCausalLM.from_pretrained(
        model_path(name), dtype="auto", output_loading_info=True
    )
    assert not any(info.values()), info
    assert model.dtype == torch.float32
    assert type(model).__name__ == RECIPES[name].config["architectures"][0]
    assert model.config.num_key_value_heads < model.config.num_attention_heads
    dim = 48 if name == "mistral-tiny" else 64
    heads = model.config.num_attention_heads
    gate = 2 if name.startswith("qwen3.5") else 1
    attention = model.model.layers[-1].self_attn
    assert attention.q_proj.out_features == gate * heads * dim


@pytest.mark.parametrize("name", TINY)
def test_every_parameter_is_random(name):
    for key, tensor in tensors_of(model_path(name)).items():
        assert tensor.std() > 0.01, key
        assert (
            tensor.flatten().unique().numel() > 0.9 * tensor.numel() ** 0.9
        ), key


def test_shapes_of_folder_that_loaders_must_handle():
    configs = {
        n: json.loads((model_path(n) / "config.json").read_text()) for n in TINY
    }
    assert {c["tie_word_embeddings"] for c in configs.values()} == {True, False}
    assert {"rope_theta" in c for c in configs.values()} == {True, False}
    sharded = [n for n in TINY if RECIPES[n].shards > 1]
    assert sharded == ["mistral-tiny", "qwen3-moe-tiny"]
    for name in sharded:
        index = json.loads(
            (model_path(name) / "model.safetensors.index.json").read_text()
        )
        held = tensors_of(model_path(name))
        assert index["weight_map"].keys() == held.keys()
        total = sum(tensor.nbytes for tensor in held.values())
        assert index["metadata"]["total_size"] == total
    for name, config in configs.items():
        has_head = "lm_head.weight" in tensors_of(model_path(name))
        assert has_head != config["tie_word_embeddings"]


@pytest.mark.parametrize("name", TINY)
def test_tokenizer_round_trip_and_chat(name):
    tokenizer = load_tokenizer(model_path(name))
    ids = tokenizer(TEXT, add_special_tokens=False).input_ids
    assert tokenizer.decode(ids) == TEXT
    assert len(ids) < len(TEXT.encode())
    message = [{"role": "user", "content": "Hi there"}]
    chat = tokenizer.apply_chat_template(
        message, add_generation_prompt=True, tokenize=True, return_dict=False
    )
    shown = tokenizer.decode(chat)
    assert "Hi there" in shown
    style = RECIPES[name].style
    assert shown.count(style.bos or "no bos") == (1 if style.bos else 0)
    assert (
        tokenizer.eos_token_id == style.id_of(style.ends[0]) == _first_eos(name)
    )
    if style.bos:
        assert tokenizer(TEXT).input_ids == [tokenizer.bos_token_id, *ids]


def _first_eos(name: str) -> int:
    text = (model_path(name) / "generation_config.json").read_text()
    ends = json.loads(text)["eos_token_id"]
    return ends if isinstance(ends, int) else ends[0]


def test_unknown_name_lists_the_known_ones():
    done = run_cli("path", "qwen9-tiny")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert all(name in done.stderr for name in KNOWN)
    done = run_cli("make", "smollm2-135m")
    assert done.returncode == 1
    assert "qwen3-tiny" in done.stderr


def test_list_names_every_model():
    done = run_cli("list")
    assert done.returncode == 0
    assert [line.split("\t")[0] for line in done.stdout.splitlines()] == list(
        KNOWN
    )


def test_local_folder_is_itself_and_other_folders_are_refused(tmp_path):
    folder = model_path("qwen3-tiny")
    assert model_path(str(folder) + "/") == folder
    with pytest.raises(ModelError, match=r"config\.json"):
        model_path(tmp_path)


def test_no_network_is_one_line_that_says_what_to_do(tmp_path):
    env = {
        "MINISGL_MODELS": str(tmp_path / "models"),
        "MINISGL_CACHE": str(tmp_path / "cache"),
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": "",
        "HF_HUB_OFFLINE": "1",
    }
    done = run_cli("fetch", "smollm2-135m", **env)
    assert done.returncode == 1
    assert [line[:5] for line in done.stderr.splitlines()] == ["fetch", "error"]
    assert "network" in done.stderr
    assert ".whl into" in done.stderr
    done = run_cli("fetch", "Nobody/Nothing", **env)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("error: cannot fetch Nobody")
    done = run_cli("fetch", "Nobody/Nothing", "--source", "attic", **env)
    assert done.returncode == 1
    assert "huggingface, modelscope" in done.stderr
    assert not (tmp_path / "models" / "smollm2-135m").exists()


def test_a_worktree_uses_the_models_of_its_main_checkout(tmp_path, monkeypatch):
    main, tree, plain = tmp_path / "main", tmp_path / "tree", tmp_path / "plain"
    for folder in (main, plain):
        shutil.copytree(ROOT / "tools" / "zoo", folder / "tools" / "zoo")
        shutil.copy(
            ROOT / "tools" / "models.py", folder / "tools" / "models.py"
        )
    git = ["git", "-C", str(main), "-c", "user.name=n", "-c", "user.email=e@x"]
    for command in (
        ["init", "-q"],
        ["add", "."],
        ["commit", "-qm", "x"],
        ["worktree", "add", "-q", str(tree)],
    ):
        subprocess.run([*git, *command], check=True)
    code = "from tools.zoo.places import models_dir; print(models_dir())"
    monkeypatch.delenv("MINISGL_MODELS", raising=False)
    for folder, owner in ((main, main), (tree, main), (plain, plain)):
        found = subprocess.check_output(
            [sys.executable, "-c", code], cwd=folder, text=True
        )
        assert Path(found.strip()) == owner / "models"


def test_measured_is_masked_by_its_tilde():
    assert measured(12.34, "ms") == "~12.3 ms"
    assert measured(1234.5, "tokens/s", 0) == "~1,234 tokens/s"
