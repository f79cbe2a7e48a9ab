"""What a rank has of a model: sizes, stored tensors, and what is refused."""

from dataclasses import replace

import pytest
import torch

from minisgl import distributed
from minisgl.distributed import DistributedInfo, get_tp_info, set_tp_info
from minisgl.engine import Engine, EngineConfig
from minisgl.layers import LinearOProj, LinearQKVMerged, VocabParallelEmbedding
from minisgl.models import load_weight
from minisgl.models.shard import local_config, part_of
from minisgl.utils import div_even
from tests.parity import model_under_test
from tools.models import model_path

FOLDER = model_under_test("qwen3-tiny")
CPU = torch.device("cpu")


def config_of(folder, number=0, size=1, **settings):
    info = DistributedInfo(number, size)
    return EngineConfig(str(folder), info, "float32", device="cpu", **settings)


def test_a_process_that_nobody_told_is_alone(rank):
    assert distributed.try_get_tp_info() is None
    assert get_tp_info() == DistributedInfo(0, 1)
    set_tp_info(1, 2)
    set_tp_info(1, 2)
    assert distributed.try_get_tp_info() == get_tp_info()
    with pytest.raises(RuntimeError, match=r"rank=1, size=2.* already"):
        set_tp_info(0, 2)
    assert get_tp_info() == DistributedInfo(1, 2)
    distributed.destroy_distributed()
    assert distributed.try_get_tp_info() is None


def test_one_rank_says_nothing_to_itself(rank):
    comm, x = distributed.DistributedCommunicator(), torch.arange(3.0)
    assert comm.all_reduce(x) is x
    assert comm.all_gather(x) is x
    first = Engine(config_of(FOLDER, num_page_override=8))
    second = Engine(config_of(FOLDER, num_page_override=8))
    assert first.tp_cpu_group is second.tp_cpu_group is None
    assert not torch.distributed.is_initialized()
    first.shutdown()
    second.shutdown()


def test_even_shares():
    assert div_even(2, 4, allow_replicate=True) == 1
    assert div_even(4, 2, allow_replicate=True) == 2
    for few, ranks in [(2, 3), (3, 2), (3, 4)]:
        with pytest.raises(ValueError, match=f"{few} cannot .* by {ranks}"):
            div_even(few, ranks, allow_replicate=True)


def test_c28_uneven_sizes_are_refused_with_both_numbers():
    smol = config_of(model_path("smollm2-135m")).model_config
    assert local_config(smol, 3).num_qo_heads == 3
    assert local_config(smol, 3).num_kv_heads == 1
    cases = [
        (smol, 2, "9 query heads .* 2 ranks"),
        (replace(smol, num_qo_heads=8, num_kv_heads=3), 4, "3 kv heads .* 4"),
        (replace(smol, intermediate_size=100), 3, "100 columns .* 3 ranks"),
    ]
    for config, size, words in cases:
        with pytest.raises(ValueError, match=words) as error:
            local_config(config, size)
        assert "--tensor-parallel-size" in str(error.value)


def test_c28_few_kv_heads_are_copied():
    config = config_of(FOLDER).model_config  # 4 query heads, 2 kv heads
    assert local_config(config, 1) == config
    for size, queries, pairs in [(2, 2, 1), (4, 1, 1)]:
        local = local_config(config, size)
        assert (local.num_qo_heads, local.num_kv_heads) == (queries, pairs)
    parts = [
        part_of("k_proj.weight", [128, 9], DistributedInfo(r, 4), 2)
        for r in range(4)
    ]
    # Queries 0 and 1 read kv head 0, queries 2 and 3 read head 1.
    assert [(p.start, p.stop) for p in parts] == [
        (0, 64),
        (0, 64),
        (64, 128),
        (64, 128),
    ]


@pytest.mark.parametrize("name", ["qwen2-tiny", "qwen3-tiny", "mistral-tiny"])
def test_the_parts_together_are_the_whole(rank, name):
    folder = str(model_path(name))
    whole = dict(load_weight(folder, CPU))
    ranks = []
    for number in (0, 1):
        rank(number, 2)
        ranks.append(dict(load_weight(folder, CPU)))
    for key, full in whole.items():
        parts = [weights[key] for weights in ranks]
        joined = join(key, parts, config_of(folder).model_config)
        assert torch.equal(joined, full), key
    assert sum(w.numel() for w in ranks[0].values()) < 0.51 * sum(
        w.numel() for w in whole.values()
    )


def join(name, parts, config):
    """Two ranks' parts of a weight as one."""
    if "qkv_proj" in name:
        each = config.head_dim // 2
        sizes = [n * each for n in (config.num_qo_heads,)]
        sizes += [config.num_kv_heads * each] * 2
        split = [part.split(sizes) for part in parts]
        return torch.cat([torch.cat(same) for same in zip(*split, strict=True)])
    if "gate_up_proj" in name:
        split = [part.chunk(2) for part in parts]
        return torch.cat([torch.cat(same) for same in zip(*split, strict=True)])
    if "o_proj" in name or "down_proj" in name:
        return torch.cat(parts, dim=1)
    if "embed_tokens" in name or "lm_head" in name:
        return torch.cat(parts)
    assert torch.equal(*parts), name
    return parts[0]


def test_a_rank_reads_no_more_than_its_part(rank, monkeypatch):
    read = []
    from minisgl.models.checkpoint import WeightFiles

    inner = WeightFiles.read_part

    def noted(self, *args):
        found = inner(self, *args)
        read.append(found.numel())
        return found

    monkeypatch.setattr(WeightFiles, "read_part", noted)
    plain = WeightFiles.read
    monkeypatch.setattr(
        WeightFiles,
        "read",
        lambda self, name: (
            read.append(plain(self, name).numel()) or plain(self, name)
        ),
    )
    rank(3, 4)
    wanted = sum(w.numel() for _, w in load_weight(str(FOLDER), CPU))
    assert sum(read) == wanted


def test_c25_rows_that_stand_for_no_token_are_zero(rank):
    name, tables = "model.embed_tokens.weight", []
    for number in range(3):
        rank(number, 3)
        # Alone, for 3 does not divide this model's MLP.
        [(_, found)] = load_weight(str(FOLDER), CPU, wanted=[name])
        tables.append(found)
        assert len(tables[-1]) == len(VocabParallelEmbedding(512, 1).weight)
    rank(0, 1)
    whole = dict(load_weight(str(FOLDER), CPU))[name]
    joined = torch.cat(tables)
    assert len(joined) == 513 and torch.equal(joined[:512], whole)
    assert not joined[512:].any()


def test_more_ranks_than_tokens_leave_some_with_zeros():
    parts = [
        part_of("lm_head.weight", [5, 8], DistributedInfo(r, 4), 1)
        for r in range(4)
    ]
    assert [(p.start, p.stop, p.length) for p in parts] == [
        (0, 2, 2),
        (2, 4, 2),
        (4, 5, 2),
        (5, 5, 2),
    ]


def test_what_is_not_cut_is_whole():
    info = DistributedInfo(1, 2)
    for name in ("norm.weight", "q_norm.weight", "o_proj.bias", "mlp.gate.x"):
        assert part_of(f"model.layers.0.{name}", [8], info, 2) is None


def test_a_bias_behind_the_sum_is_added_once(rank, monkeypatch):
    rank(0, 2)
    layer = LinearOProj(4, 3, has_bias=True)
    assert layer.weight.shape == (3, 2)
    layer.weight, layer.bias = torch.ones(3, 2), torch.full((3,), 10.0)
    # Stands for the other rank, which has computed the same.
    monkeypatch.setattr(layer._comm, "all_reduce", lambda x: 2 * x)
    assert layer.forward(torch.ones(1, 2)).tolist() == [[14.0] * 3]


def test_a_rank_has_its_heads(rank):
    rank(1, 4)
    layer = LinearQKVMerged(8, 16, 4, 2, has_bias=True)
    assert layer.weight.shape == (3 * 16, 8)
    assert layer.bias is not None and layer.bias.shape == (3 * 16,)


def test_the_settings_of_ranks():
    config = config_of(FOLDER)
    assert config.distributed_addr.startswith("tcp://127.0.0.1:")
    assert (config.distributed_timeout, config.use_pynccl) == (60.0, True)
    for seconds in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match=r"^distributed_timeout must be"):
            config_of(FOLDER, distributed_timeout=seconds)


def test_c28_an_engine_refuses_before_it_waits_for_others():
    folder = model_path("smollm2-135m")
    with pytest.raises(ValueError, match=r"9 query heads .* 2 ranks"):
        Engine(config_of(folder, 1, 2))
    assert not torch.distributed.is_initialized()


def test_ranks_that_do_not_come_are_not_waited_for_for_ever(tmp_path):
    class Here(EngineConfig):
        distributed_addr = f"file://{tmp_path / 'ranks'}"

    info = DistributedInfo(0, 2)
    config = Here(
        str(FOLDER), info, "float32", device="cpu", distributed_timeout=1.0
    )
    try:
        with pytest.raises(RuntimeError):
            Engine(config)
    finally:
        distributed.destroy_distributed()
