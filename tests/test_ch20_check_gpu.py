"""The self-check: green where all is right, red and exit 1 where something is not."""

import json

import pytest
import torch
from typer.testing import CliRunner

from minisgl import check_gpu
from minisgl.selfcheck import engine, kernels, ranks, report, whole
from minisgl.selfcheck.engine import compare, compare_runs
from minisgl.selfcheck.models import (
    KINDS,
    Reference,
    _draw,
    find_model,
    make_model,
)
from minisgl.selfcheck.report import Setting, Skip, run_checks
from tests.fakes import flashinfer
from tests.fakes.install import stand_ins

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    for kind in ("qwen3", "qwen3_moe"):
        make_model(kind, folder / kind)
    return folder


@pytest.fixture
def run(models):
    """The command on a CPU, with the models that are there."""

    def call(*words):
        app = check_gpu.typer.Typer()
        app.command()(check_gpu.main)
        fixed = ["--device", "cpu", "--models", str(models)]
        return CliRunner().invoke(app, [*fixed, *words])

    return call


# -- the command ---------------------------------------------------------------


def test_kernels_are_right_and_what_cannot_run_is_a_skip(run, tmp_path):
    file = tmp_path / "out.json"
    done = run("--only", "kernel", "--json", str(file))
    assert done.exit_code == 0, done.output
    found = json.loads(file.read_text())
    states = {one["name"]: one["state"] for one in found["checks"]}
    assert states.pop("kernel: experts (Triton)") in ("skip", "ok")
    for name in ("operators", "draws"):
        assert states.pop(f"kernel: {name} (flashinfer)") == "skip"
    assert len(states) == len(kernels.KERNELS) - 3
    assert set(states.values()) == {"ok"}
    assert found["device"] and found["torch"] == torch.__version__
    assert len(found["date"]) == 10
    for name in states:
        assert name in done.output


@pytest.mark.parametrize("kernel", ["store_cache", "indexing"])
def test_a_wrong_kernel_is_red(run, monkeypatch, kernel):
    right = getattr(kernels, kernel)

    def wrong(*args, **kwargs):
        result = right(*args, **kwargs)
        target = args[0] if result is None else result
        target.view(-1)[-1] += 1
        return result

    monkeypatch.setattr(kernels, kernel, wrong)
    name = {"store_cache": "kernel: store", "indexing": "kernel: index"}[kernel]
    done = run("--only", name)
    assert done.exit_code == 1
    assert "FAILED" in done.output and f"failed: {name}" in done.output


OPERATORS = {
    "rmsnorm": "norm",
    "fused_add_rmsnorm": "norm of a sum",
    "silu_and_mul": "silu and mul",
    "apply_rope_with_cos_sin_cache_inplace": "rope",
}


@pytest.mark.parametrize("function", OPERATORS)
def test_a_wrong_operator_is_red(function, monkeypatch):
    setting, right = Setting(CPU, None), getattr(flashinfer, function)
    with stand_ins("flashinfer"):
        assert kernels.check_operators(setting).startswith("5 operators")

        def wrong(x, *args):
            # What is not bfloat16 stands for torch's.
            if x.dtype == torch.bfloat16:
                x[3] *= 1.1
            return right(x, *args)

        if function == "rmsnorm":
            # A norm does not mind how long a row is.
            def wrong(x, weight, eps):
                halves = x.dtype == torch.bfloat16
                return right(x, weight, 0.1 if halves else eps)

        if function.startswith("apply_rope"):

            def wrong(positions, query, *args):
                halves = query.dtype == torch.bfloat16
                return right(positions + halves, query, *args)

        monkeypatch.setattr(flashinfer, function, wrong)
        with pytest.raises(AssertionError, match=f"^{OPERATORS[function]}: "):
            kernels.check_operators(setting)


@pytest.mark.parametrize(
    "function, words",
    [
        ("top_k_renorm_probs", "is not the best"),
        ("top_p_renorm_probs", "past the limits"),
    ],
)
def test_a_wrong_draw_is_red(function, words, monkeypatch):
    setting = Setting(CPU, None)
    with stand_ins("flashinfer"):
        assert kernels.check_draws(setting).startswith("128 draws")
        monkeypatch.setattr(
            flashinfer.sampling, function, lambda probs, *args, **kwargs: probs
        )
        with pytest.raises(AssertionError, match=words):
            kernels.check_draws(setting)


def test_without_a_gpu_one_line_says_so(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    app = check_gpu.typer.Typer()
    app.command()(check_gpu.main)
    done = CliRunner().invoke(app, [])
    assert done.exit_code == 1
    assert done.output.strip().startswith("error: device 'cuda': no CUDA")
    assert len(done.output.strip().splitlines()) == 1


def test_a_name_that_no_check_has_is_an_error(run, tmp_path):
    file = tmp_path / "kept.json"
    file.write_text("the last result")
    done = run("--only", "magic", "--json", str(file))
    assert done.exit_code == 1
    assert done.output.strip() == "error: no check is called 'magic'"
    assert file.read_text() == "the last result"


@pytest.mark.parity
def test_whole_models_agree_with_transformers(run):
    done = run("--only", "float32: qwen3_moe")
    assert done.exit_code == 0, done.output
    assert "192 of 192 tokens equal" in done.output


def test_bfloat16_differs_only_where_choices_are_close(run):
    done = run("--only", "bf16: qwen3_moe, torch")
    assert done.exit_code == 0, done.output
    assert "of 192 tokens equal" in done.output


def test_overlap_changes_nothing(run):
    done = run("--only", "overlap")
    assert done.exit_code == 0, done.output
    assert "192 of 192 tokens equal" in done.output


def test_answers_that_are_not_those_of_transformers_are_red(run, monkeypatch):
    clear = Reference([1] * engine.TOKENS, [1.0] * engine.TOKENS)
    monkeypatch.setattr(
        whole, "transformers_answers", lambda *args: [clear] * 8
    )
    whole._reference.cache_clear()
    done = run("--only", "overlap")
    assert done.exit_code == 0, (
        "on and off are alike: there is nothing to judge"
    )
    done = run("--only", "float32: qwen3_moe")
    whole._reference.cache_clear()
    assert done.exit_code == 1
    assert "though the best leads by 1 std" in " ".join(done.output.split())


def test_two_ranks_agree(run):
    done = run("--only", "two ranks: qwen3_moe")
    assert done.exit_code == 0, done.output
    assert "192 of 192 tokens equal" in done.output


# -- its parts -------------------------------------------------------------------


def test_what_makes_a_check_red_and_what_does_not():
    def skips(setting):
        raise Skip("too small")

    def wrong(setting):
        raise AssertionError("first line\nsecond line")

    def broken(setting):
        raise RuntimeError

    checks = {"a": lambda s: "fine", "b": skips, "c": wrong, "d": broken}
    results = list(run_checks(checks, Setting(CPU, None)))
    assert [(one.state, one.note) for one in results] == [
        ("ok", "fine"),
        ("skip", "too small"),
        ("FAILED", "first line"),
        ("FAILED", "RuntimeError"),
    ]
    table = report.make_table(results)
    assert table.row_count == 4


def test_what_comes_after_a_lost_device_is_not_tried(monkeypatch):
    def wild(setting):
        raise RuntimeError("CUDA error: an illegal memory access")

    def never(setting):
        raise AssertionError("was tried")

    monkeypatch.setattr(report, "_is_alive", lambda setting: False)
    checks = {"a": lambda s: "fine", "b": wild, "c": never, "d": never}
    results = list(run_checks(checks, Setting(CPU, None)))
    assert [one.state for one in results] == [
        "ok",
        "FAILED",
        "FAILED",
        "FAILED",
    ]
    assert results[1].note == "CUDA error: an illegal memory access"
    assert {one.note for one in results[2:]} == {
        "not run: the device was lost in b"
    }


def refer(ids, gaps):
    return [Reference(ids, gaps)]


def test_answers_may_part_where_the_choice_was_close(monkeypatch):
    monkeypatch.setattr(engine, "TOKENS", 4)
    known = refer([5, 6, 7, 8], [1.0, 0.01, 1.0, 1.0])
    assert compare([[5, 6, 7, 8]], known, 0.1) == "4 of 4 tokens equal"
    note = compare([[5, 9, 1, 1]], known, 0.1)
    assert note.startswith("1 of 4 tokens equal, 1 close choices")
    with pytest.raises(AssertionError, match="token 1: 9, not 6"):
        compare([[5, 9, 1, 1]], known, 0.001)
    with pytest.raises(AssertionError, match="token 2"):
        compare([[5, 6, 9, 8]], known, 0.1)
    two, known = [[5, 9, 1, 1], [5, 6, 7, 8]], known * 2
    note = compare(two, known, 0.001, spare=1)
    assert note == "5 of 8 tokens equal, 1 not close (1 may be)"
    with pytest.raises(AssertionError, match=r"request 0, .*request 1, "):
        compare([two[0]] * 2, known, 0.001, spare=1)
    close = refer([5, 6, 7, 8], [0.01] * 4)
    with pytest.raises(AssertionError, match="only 0 of 4 tokens equal"):
        compare([[9, 9, 9, 9]], close, 0.1)
    with pytest.raises(AssertionError, match="3 tokens, not 4"):
        compare([[5, 6, 7]], known, 0.1)


def test_two_runs_are_judged_only_while_they_follow_the_reference(monkeypatch):
    monkeypatch.setattr(engine, "TOKENS", 4)
    known = refer([5, 6, 7, 8], [1.0, 0.01, 1.0, 1.0])
    # Both left it at token 1; where they part later nobody knows the gap.
    one, other = [[5, 9, 3, 3]], [[5, 9, 3, 4]]
    assert compare_runs(one, other, known, 0.1) == "3 of 4 tokens equal"
    with pytest.raises(AssertionError, match="token 0"):
        compare_runs([[5, 6, 7, 8]], [[4, 6, 7, 8]], known, 0.1)


def test_a_backend_that_refuses_is_a_skip_with_its_reason(monkeypatch, models):
    def refuse(config, prompts):
        raise ValueError("attention backend 'x' cannot be used: no library")

    monkeypatch.setattr(whole, "answer", refuse)
    setting = Setting(CPU, models)
    with pytest.raises(Skip, match=r"^no library$"):
        whole.parity(setting, "qwen3", torch.bfloat16)

    def fail(config, prompts):
        raise ValueError("page_size must be at least 1")

    monkeypatch.setattr(whole, "answer", fail)
    with pytest.raises(ValueError, match="page_size"):
        whole.parity(setting, "qwen3", torch.bfloat16)


def test_recorded_steps_are_compared_with_launched_ones(run, monkeypatch):
    done = run("--only", "graph and eager: qwen3_moe")
    assert done.exit_code == 0, done.output
    assert "192 of 192 tokens equal" in done.output
    answer, seen = whole.answer, []

    def other_tokens(config, prompts):
        seen.append(config.cuda_graph_max_bs)
        answers = answer(config, prompts)
        return answers[::-1] if config.cuda_graph_max_bs else answers

    monkeypatch.setattr(whole, "answer", other_tokens)
    done = run("--only", "graph and eager: qwen3_moe")
    assert done.exit_code == 1 and seen == [0, 8]


def test_one_gpu_is_a_skip_of_two_ranks(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    setting = Setting(torch.device("cuda"), None)
    with pytest.raises(Skip, match="1 GPU; two are needed"):
        whole.ranks(setting, "qwen3", torch.float32)


def test_two_gpus_are_enough_for_two_ranks(monkeypatch, models):
    def reached(config, size, prompts):
        raise LookupError(f"{size} ranks")

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(whole, "answer_by_ranks", reached)
    setting = Setting(torch.device("cuda"), models)
    with pytest.raises(LookupError, match="2 ranks"):
        whole.ranks(setting, "qwen3", torch.float32)


def test_only_experts_in_half_precision_may_leave_the_reference():
    kinds = ("qwen3", "qwen3_moe")
    spare = {
        (kind, dtype): whole._bounds(kind, dtype)[1]
        for kind in kinds
        for dtype in (torch.float32, torch.bfloat16)
    }
    assert [at for at, count in spare.items() if count] == [
        ("qwen3_moe", torch.bfloat16)
    ]


@pytest.mark.parametrize("name", ["embed_tokens.weight", "q_proj.bias"])
def test_embeddings_and_biases_do_not_depend_on_their_shape(name):
    torch.manual_seed(0)
    spreads = [float(_draw(name, torch.empty(64, n)).std()) for n in (64, 256)]
    assert all(abs(spread - 0.5) < 0.05 for spread in spreads)


def test_models_are_made_once(tmp_path, monkeypatch):
    made = find_model("qwen2", tmp_path)
    assert made == tmp_path / "qwen2"
    monkeypatch.setattr("minisgl.selfcheck.models.make_model", None)
    assert find_model("qwen2", tmp_path) == made


def test_a_rank_that_dies_is_an_error_and_leaves_nobody(models):
    config = engine.make_config(models / "missing", CPU)
    with pytest.raises(RuntimeError, match="a rank ended with 1"):
        ranks.answer_by_ranks(config, 2, [[1, 2, 3]])
    assert not config.socket_dir.exists()


def test_all_kinds_are_checked_and_named_like_their_models():
    names = whole.whole_checks(Setting(CPU, None))
    for kind in KINDS:
        assert f"float32: {kind}" in names
    cuda = whole.whole_checks(Setting(torch.device("cuda"), None))
    assert set(names) < set(cuda)
    assert "float32: qwen3_moe, fused" in cuda
