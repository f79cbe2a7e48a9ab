"""Loading: one weight at a time, and every fault of a checkpoint named."""

import json
import logging
import mmap
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from minisgl.models import load_weight
from minisgl.models import weight as weight_module
from minisgl.models.checkpoint import WeightFiles
from tests.bare_model import CPU, last_logits, load_bare
from tests.parity import prompts
from tools.bench_load import Peak, anonymous_bytes
from tools.models import model_path
from tools.steplib.masks import first_difference
from tools.zoo.places import models_dir

INDEX = "model.safetensors.index.json"
ONE = "model.safetensors"


@pytest.fixture
def copy(tmp_path):
    """copy(model): the model's folder where a test may damage it."""

    def make(model):
        return Path(shutil.copytree(model_path(model), tmp_path / model))

    return make


def edit(folder, file=ONE, drop=(), add=None, cast=None):
    """Rewrite a weight file without some tensors, or with others."""
    tensors = load_file(folder / file)
    kept = {name: w for name, w in tensors.items() if name not in drop}
    kept |= add or {}
    if cast is not None:
        kept = {name: w.to(cast) for name, w in kept.items()}
    # A new file: the old one may still be mapped by a model that is in use.
    save_file(kept, folder / "new", {"format": "pt"})
    (folder / "new").replace(folder / file)


def configure(folder, **changes):
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def split(folder, **files):
    """Spread the one weight file over several, by name: file=[tensor, ...]."""
    tensors = load_file(folder / ONE)
    for file, names in files.items():
        save_file(
            {n: tensors[n] for n in names}, folder / f"{file}.safetensors"
        )


@pytest.fixture
def said(caplog):
    """What the loader logs."""
    logger = logging.getLogger("weight")
    logger.addHandler(caplog.handler)
    yield caplog
    logger.removeHandler(caplog.handler)


AT = "model.layers.1."
STORED = {
    f"{AT}self_attn.qkv_proj.weight": ["q_proj", "k_proj", "v_proj"],
    f"{AT}self_attn.qkv_proj.bias": ["q_proj", "k_proj", "v_proj"],
    f"{AT}mlp.gate_up_proj.weight": ["gate_proj", "up_proj"],
    f"{AT}mlp.down_proj.weight": ["down_proj"],
    f"{AT}self_attn.o_proj.weight": ["o_proj"],
}


def test_parts_are_stacked_in_the_order_of_the_operator():
    folder = model_path("qwen2-tiny")
    stored, loaded = (
        load_file(folder / ONE),
        dict(load_weight(str(folder), CPU)),
    )
    for name, parts in STORED.items():
        head, _, tail = name.rpartition(".")
        block = head.rpartition(".")[0]
        pieces = [stored[f"{block}.{part}.{tail}"] for part in parts]
        assert torch.equal(loaded[name], torch.cat(pieces)), name
    same = [name for name in stored if "_proj" not in name]
    assert len(same) == 2 * 3 + 2
    assert all(torch.equal(loaded[name], stored[name]) for name in same)
    assert len(loaded) == len(same) + 3 * len(STORED)


def test_c25_every_parameter_is_assigned_exactly_once():
    for model in ("qwen3-tiny", "qwen2-tiny", "mistral-tiny"):
        folder = str(model_path(model))
        state = load_bare(folder)[0].state_dict()
        names = [n for n, _ in load_weight(folder, CPU, wanted=state.keys())]
        assert sorted(names) == sorted(state)
        assert {w.device for w in state.values()} == {CPU}


def test_weights_are_read_when_their_turn_comes(monkeypatch):
    read = []

    class Watched(WeightFiles):
        def read(self, name):
            read.append(name)
            return super().read(name)

    monkeypatch.setattr(weight_module, "WeightFiles", Watched)
    weights = load_weight(str(model_path("mistral-tiny")), CPU)
    assert not read
    for name, _ in weights:
        assert len(read) == (
            3 if "qkv" in name else 2 if "gate_up" in name else 1
        )
        read.clear()


def test_weights_lie_in_memory_of_their_own_not_in_the_mapped_file(copy):
    folder = copy("qwen3-tiny")
    name = "model.norm.weight"
    before = load_file(folder / ONE)[name].clone()
    loaded = dict(load_weight(str(folder), CPU))
    with (folder / ONE).open("r+b") as file:
        file.write(bytes((folder / ONE).stat().st_size))
    assert torch.equal(loaded[name], before)


def test_the_dtype_changes_on_the_way_and_widening_is_exact(copy, said):
    folder = copy("qwen3-tiny")
    edit(folder, cast=torch.bfloat16)
    stored = load_file(folder / ONE)
    kept = dict(load_weight(str(folder), CPU))
    assert {w.dtype for w in kept.values()} == {torch.bfloat16}
    wide = dict(load_weight(str(folder), CPU, torch.float32))
    assert {w.dtype for w in wide.values()} == {torch.float32}
    name = "model.embed_tokens.weight"
    assert torch.equal(wide[name], stored[name].float())
    assert not said.records


@pytest.mark.parametrize("narrow", [torch.bfloat16, torch.float16])
def test_c15_a_cast_that_loses_precision_is_never_silent(copy, said, narrow):
    folder = copy("qwen3-tiny")
    loaded = dict(load_weight(str(folder), CPU, narrow))
    assert {w.dtype for w in loaded.values()} == {narrow}
    assert f"stored in torch.float32 lose precision as {narrow}" in said.text
    edit(folder, cast=torch.bfloat16)
    said.clear()
    list(load_weight(str(folder), CPU, narrow))
    assert bool(said.records) == (narrow == torch.float16)


# Files


def test_files_that_the_index_does_not_name_are_ignored(copy):
    folder = copy("mistral-tiny")
    names = set(WeightFiles(folder).names())
    (folder / "junk.safetensors").write_bytes(b"no tensors")
    part = load_file(folder / "model-00001-of-00003.safetensors")
    save_file({n: w + 1 for n, w in part.items()}, folder / "zz.safetensors")
    assert set(WeightFiles(folder).names()) == names
    load_bare(folder)


def test_without_an_index_all_files_count(copy):
    folder = copy("qwen3-tiny")
    names = WeightFiles(folder).names()
    split(folder, a=names[:5], b=names[5:])
    (folder / ONE).unlink()
    assert sorted(WeightFiles(folder).names()) == sorted(names)
    load_bare(folder)


def test_no_weights_at_all(tmp_path):
    with pytest.raises(FileNotFoundError, match=f"no .safetensors.*{tmp_path}"):
        WeightFiles(tmp_path)
    (tmp_path / INDEX).write_text('{"weight_map": {}}')
    with pytest.raises(FileNotFoundError, match=f"no .safetensors.*{tmp_path}"):
        WeightFiles(tmp_path)


def test_a_file_of_the_index_is_missing(copy):
    folder = copy("mistral-tiny")
    (folder / "model-00002-of-00003.safetensors").unlink()
    wrong = r"model-00002-of-00003.safetensors is missing though the index"
    with pytest.raises(FileNotFoundError, match=wrong):
        load_bare(folder)


@pytest.mark.parametrize("text", ["{", "{}"])
def test_a_damaged_index(copy, text):
    folder = copy("mistral-tiny")
    (folder / INDEX).write_text(text)
    with pytest.raises(ValueError, match=rf"{INDEX} is damaged"):
        load_bare(folder)


def test_the_index_places_a_tensor_where_it_is_not(copy):
    folder = copy("mistral-tiny")
    index = json.loads((folder / INDEX).read_text())
    places = index["weight_map"]
    name, file = next(iter(places.items()))
    places[name] = other = next(f for f in places.values() if f != file)
    (folder / INDEX).write_text(json.dumps(index))
    wrong = rf"places tensor '{name}' in {other}, which does not"
    with pytest.raises(ValueError, match=wrong):
        load_bare(folder)
    places[name], places["no.such"] = file, file
    (folder / INDEX).write_text(json.dumps(index))
    with pytest.raises(ValueError, match=rf"'no.such' in {file}, which"):
        load_bare(folder)


def test_a_tensor_in_two_files(copy):
    folder = copy("qwen3-tiny")
    split(folder, extra=["model.norm.weight"])
    wrong = r"'model.norm.weight' is stored twice .*extra.* and in model.safe"
    with pytest.raises(ValueError, match=wrong):
        load_bare(folder)
    folder = copy("mistral-tiny")
    index = json.loads((folder / INDEX).read_text())["weight_map"]
    other = sorted(set(index.values()) - {index["model.norm.weight"]})[0]
    edit(folder, other, add={"model.norm.weight": torch.ones(128)})
    with pytest.raises(
        ValueError, match=r"'model.norm.weight' is stored twice"
    ):
        load_bare(folder)


def test_a_weight_that_is_stored_whole_and_in_parts(copy):
    folder = copy("qwen3-tiny")
    parts = [f"{AT}mlp.{part}_proj.weight" for part in ("gate", "up")]
    stored = load_file(folder / ONE)
    whole = f"{AT}mlp.gate_up_proj.weight"
    merged = torch.cat([stored[part] for part in parts])
    edit(folder, add={whole: merged})
    with pytest.raises(
        ValueError, match=rf"'{whole}' is stored twice .*gate_proj"
    ):
        load_bare(folder)
    edit(folder, drop=parts)
    assert torch.equal(load_bare(folder)[0].state_dict()[whole], merged)


def test_a_truncated_file_names_the_tensor_that_is_cut(copy):
    folder = copy("qwen3-tiny")
    raw = (folder / ONE).read_bytes()
    header = int.from_bytes(raw[:8], "little")
    tensors = json.loads(raw[8 : 8 + header])
    tensors.pop("__metadata__")
    order = sorted(tensors, key=lambda name: tensors[name]["data_offsets"])
    last, end = order[-1], tensors[order[-1]]["data_offsets"][1]
    assert len(raw) == 8 + header + end
    middle = order[3]
    cuts = {last: len(raw) - 1}
    cuts[middle] = 8 + header + tensors[middle]["data_offsets"][1] - 1
    cuts[order[4]] = 8 + header + tensors[middle]["data_offsets"][1]
    for name, length in cuts.items():
        (folder / ONE).write_bytes(raw[:length])
        wrong = rf"{ONE} is truncated or damaged from tensor '{name}' on"
        with pytest.raises(ValueError, match=wrong):
            load_bare(folder)


@pytest.mark.parametrize(
    "content", [b"", b"1234", b"no tensors are here", "half"]
)
def test_a_file_whose_header_is_damaged(copy, content):
    folder = copy("qwen3-tiny")
    raw = (folder / ONE).read_bytes()
    (folder / ONE).write_bytes(raw[:100] if content == "half" else content)
    with pytest.raises(ValueError, match=rf"{ONE} is .* in its header; fetch"):
        load_bare(folder)


def test_a_whole_header_that_makes_no_sense(copy):
    folder = copy("qwen3-tiny")
    entry = {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}
    text = json.dumps({"a": entry}).encode()
    data = len(text).to_bytes(8, "little") + text + bytes(4)
    (folder / ONE).write_bytes(data)
    with pytest.raises(
        ValueError, match=rf"{ONE} is truncated or damaged; fetch"
    ):
        load_bare(folder)


# Tensors


@pytest.mark.parametrize(
    "name",
    [
        "model.norm.weight",
        f"{AT}self_attn.k_norm.weight",
        f"{AT}self_attn.v_proj.weight",
        f"{AT}self_attn.q_proj.weight",
        f"{AT}mlp.up_proj.weight",
    ],
)
def test_a_missing_tensor_is_named_before_anything_is_read(
    copy, monkeypatch, name
):
    folder = copy("qwen3-tiny")
    edit(folder, drop=[name])
    monkeypatch.setattr(WeightFiles, "read", None)
    with pytest.raises(
        ValueError, match=rf"'{name}' is in no file of {folder}"
    ):
        load_bare(folder)


def test_a_wrong_shape_is_named(copy):
    folder = copy("qwen3-tiny")
    edit(folder, add={"model.norm.weight": torch.ones(5)})
    with pytest.raises(ValueError, match=r"'model.norm.weight'.*\[5\]"):
        load_bare(folder)


def test_c25_unknown_tensors_are_reported_and_redundant_ones_are_not(
    copy, said
):
    folder = copy("qwen3-tiny")
    odd = {f"odd.{i}": torch.ones(1) for i in range(6)}
    odd[f"{AT}self_attn.q_proj.bias"] = torch.ones(256)
    edit(folder, add=odd)
    load_bare(folder)
    assert "7 stored tensors are not used: " in said.text
    assert f"{AT}self_attn.q_proj.bias" in said.text
    assert "odd.3" in said.text and "odd.4" not in said.text
    edit(folder, drop=odd)
    said.clear()
    edit(folder, add={f"{AT}self_attn.rotary_emb.inv_freq": torch.ones(32)})
    load_bare(folder)
    assert not said.records


# Heads


def head_of(folder):
    model = load_bare(folder)[0]
    return model.lm_head, model.model.embed_tokens


def check_logits(folder):
    prompt = prompts("qwen3-tiny")[4]
    got = last_logits(*load_bare(folder), [prompt])[0]
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        expected = theirs(torch.tensor([prompt])).logits[0, -1]
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-4)


def test_c25_tied_without_a_stored_head_has_one_shared_tensor():
    folder = model_path("qwen3-tiny")
    assert "lm_head.weight" not in WeightFiles(folder)
    model = load_bare(folder)[0]
    assert not [n for n in model.state_dict() if n.startswith("lm_head")]
    assert model.lm_head._tied is model.model.embed_tokens
    check_logits(folder)


def test_c25_tied_ignores_a_head_that_is_stored(copy, said):
    folder = copy("qwen3-tiny")
    table = load_file(folder / ONE)["model.embed_tokens.weight"]
    edit(folder, add={"lm_head.weight": table.clone()})
    check_logits(folder)
    assert not said.records
    edit(folder, add={"lm_head.weight": table + 1})
    head, embedding = head_of(folder)
    assert head._tied is embedding and torch.equal(embedding.weight, table)
    assert "1 stored tensors are not used: lm_head.weight" in said.text


def test_c25_untied_uses_its_head(copy):
    folder = copy("qwen3-tiny")
    table = load_file(folder / ONE)["model.embed_tokens.weight"]
    other = torch.flip(table, [0]).contiguous()
    edit(folder, add={"lm_head.weight": other})
    configure(folder, tie_word_embeddings=False)
    head, embedding = head_of(folder)
    assert torch.equal(head.weight, other)
    assert torch.equal(embedding.weight, table)
    check_logits(folder)


def test_c25_untied_without_a_head_is_an_error(copy):
    folder = copy("qwen3-tiny")
    configure(folder, tie_word_embeddings=False)
    with pytest.raises(
        ValueError, match=rf"'lm_head.weight' is in no .*{folder}"
    ):
        load_bare(folder)


def test_c25_nothing_is_missing_in_silence_when_the_model_has_more(copy):
    folder = copy("qwen3-tiny")
    configure(folder, num_hidden_layers=4)
    with pytest.raises(ValueError, match=r"'model.layers.3.* is in no file of"):
        load_bare(folder)


# Memory

HAVE_SMOLLM2 = (models_dir() / "smollm2-135m" / "config.json").is_file()
needs_smollm2 = pytest.mark.skipif(
    not HAVE_SMOLLM2,
    reason="smollm2-135m is not here: python tools/models.py fetch smollm2-135m",
)


def bench(*arguments):
    command = [sys.executable, "tools/bench_load.py", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    if done.stdout.startswith("skipped"):
        pytest.skip(done.stdout.strip())
    return done.stdout


@needs_smollm2
def test_loading_takes_little_more_memory_than_the_weights():
    row = json.loads(bench("--here", "--dtype", "float32"))
    assert row["weights"] == pytest.approx(538.1, abs=0.1)
    assert 0.9 < row["ratio"] <= 1.3


@needs_smollm2
@pytest.mark.slow
def test_the_memory_of_the_page_comes_from_the_benchmark():
    stored = Path("stages/ch03-models/memory.txt").read_text()
    command, _, shown = stored.partition("\n")
    assert command == "$ python tools/bench_load.py --dtype float32"
    assert first_difference(shown, bench("--dtype", "float32")) is None


def test_the_benchmark_sees_memory_that_was_only_held_for_a_moment():
    if anonymous_bytes() is None:
        pytest.skip("this system has no RssAnon in /proc/self/status")
    peak = Peak()
    peak.start()
    # Straight from the system: an allocator may hand out what it still has.
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    with mmap.mmap(-1, 32_000_000, flags=private) as held:
        for page in range(0, len(held), mmap.PAGESIZE):
            held[page] = 1
        peak.sample()
    assert 0.9 * 32e6 < peak.stop() < 1.5 * 32e6
