"""Recorded steps in a server of two ranks, and a backend that cannot serve here."""

import pytest

from minisgl.server.args import parse_args
from minisgl.utils import load_tokenizer
from tests.live import Live
from tests.parity import prompts, reference
from tools.models import model_path

QWEN = "qwen3-tiny"


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    """One that answers, and one that cannot start; started together."""
    folder = tmp_path_factory.mktemp("servers")
    recorded = "--tensor-parallel-size 2 --page-size 4 --cuda-graph-max-bs 3"
    context = "--max-seq-len-override 512"
    with (
        Live(
            folder / "recorded",
            model_path(QWEN),
            *f"{recorded} {context}".split(),
        ) as good,
        Live(folder / "gpu", model_path(QWEN), "--attn", "fa,fi") as bad,
    ):
        yield good, bad


@pytest.mark.parity
def test_two_ranks_answer_by_replays(servers):
    good, _ = servers
    good.wait_ready()
    ids = prompts(QWEN)[4]
    body = {
        "model": str(model_path(QWEN)),
        "prompt": ids,
        "max_tokens": 16,
        "temperature": 0,
        "ignore_eos": True,
    }
    status, answer = good.post("/v1/completions", body)
    assert status == 200, answer
    tokenizer = load_tokenizer(str(model_path(QWEN)))
    expected = reference(QWEN, ids, 16).ids
    text = tokenizer.decode(expected, skip_special_tokens=True)
    assert answer["choices"][0]["text"] == text
    said = [line for line in good.said.splitlines() if "recorded steps" in line]
    assert len(said) == 2, "each rank has recordings"
    assert all("of 3 sizes, up to 3 requests" in line for line in said)


def test_c32_a_backend_for_gpus_ends_the_start_with_one_line(servers):
    _, bad = servers
    assert bad.wait_end(120) == 1
    [line] = bad.errors
    assert "'fa' cannot be used: it needs a GPU, not device 'cpu'" in line
    assert "Traceback" not in bad.said


@pytest.mark.parametrize(
    ("words", "setting", "value"),
    [
        ("", "cuda_graph_max_bs", None),
        ("--cuda-graph-max-bs 8", "cuda_graph_max_bs", 8),
        ("--graph 0", "cuda_graph_max_bs", 0),
        ("--attention-backend fa,fi", "attention_backend", "fa,fi"),
        ("--attn auto", "attention_backend", "auto"),
        ("--page-size 256", "page_size", 256),
    ],
)
def test_options(words, setting, value):
    args, _ = parse_args(["--model", "m", *words.split()])
    assert getattr(args, setting) == value


@pytest.mark.parametrize(
    "words",
    [
        "--cuda-graph-max-bs -1",
        "--cuda-graph-max-bs many",
        "--attention-backend fa,fi,torch",
        "--attention-backend abacus",
        "--attention-backend fi,",
    ],
)
def test_wrong_options_are_one_line_that_names_them(capsys, words):
    with pytest.raises(SystemExit) as leaving:
        parse_args(["--model", "m", *words.split()])
    assert leaving.value.code == 2
    [line] = capsys.readouterr().err.splitlines()
    assert words.split()[0] in line
