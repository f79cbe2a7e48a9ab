"""Workloads, shapes, our engine and its peers on the same requests, tables."""

import io
import json
from dataclasses import replace

import pytest
import torch
from rich.console import Console
from transformers import AutoConfig
from typer.testing import CliRunner

from minisgl.benchmark.__main__ import app, main
from minisgl.benchmark.offline import OURS, Contest, measure_offline
from minisgl.benchmark.peers import PEERS
from minisgl.benchmark.report import Report, machine
from minisgl.benchmark.shapes import SHAPES, shape_folder
from minisgl.benchmark.subject import (
    Run,
    Subject,
    open_subject,
    parse_settings,
)
from minisgl.benchmark.workload import (
    QUEUES,
    UNTIMED,
    WORKLOADS,
    Request,
    Workload,
)
from minisgl.models import ModelConfig, create_model
from minisgl.tokenizer.text import load_light_tokenizer
from minisgl.utils import load_tokenizer
from tests.parity import assert_parity, model_under_test, prompts, reference

SMALL = {"max_running_req": 3, "page_size": 4, "num_page_override": 512}
UNEVEN = Workload(6, 3, 24)


@pytest.fixture(scope="module")
def tiny() -> Subject:
    folder = str(model_under_test("qwen3-tiny"))
    return Subject(folder, False, "float32", "cpu", SMALL)


def say_nothing(text: str) -> None:
    assert text


def test_the_workload_of_the_reference_numbers():
    drawn = WORKLOADS["gpu"].draw(151936)
    assert len(drawn) == 256
    assert sum(r.output for r in drawn) == 133_966
    assert sum(len(r.prompt) for r in drawn) == 142_827
    sizes = [len(r.prompt) for r in drawn] + [r.output for r in drawn]
    assert (min(sizes), max(sizes)) >= (100, 1000) and max(sizes) <= 1024
    # The first draws of Python's generator with seed 0, as anybody gets them.
    assert (len(drawn[0].prompt), drawn[0].prompt[0]) == (964, 6311)
    assert max(max(r.prompt) for r in drawn) == 10_000


def test_rounds_have_the_same_lengths_and_other_ids():
    rounds = [UNEVEN.draw(500, number) for number in range(3)]
    lengths = [[(len(r.prompt), r.output) for r in drawn] for drawn in rounds]
    assert lengths[0] == lengths[1] == lengths[2]
    assert rounds[0][0].prompt != rounds[1][0].prompt != rounds[2][0].prompt
    assert UNEVEN.draw(500, 1) == rounds[1]
    untimed = UNEVEN.draw(500, UNTIMED)
    for drawn in rounds:
        pairs = zip(untimed, drawn, strict=True)
        assert all(one.prompt != other.prompt for one, other in pairs)
    assert all(max(r.prompt) < 500 for drawn in rounds for r in drawn)
    assert any(
        max(r.prompt) == 499 for n in range(99) for r in UNEVEN.draw(500, n)
    )


def test_prompts_share_a_beginning_and_every_eighth_is_long():
    work = Workload(16, 2, 5, shared=7, long=30)
    for number in range(2):
        drawn = work.draw(500, number)
        assert len({tuple(r.prompt[:7]) for r in drawn}) == 1
        assert len({tuple(r.prompt) for r in drawn}) == 16
        plain = replace(work, shared=0, long=0).draw(500, number)
        more = [
            len(r.prompt) - len(p.prompt)
            for r, p in zip(drawn, plain, strict=True)
        ]
        assert more == ([7] * 7 + [37]) * 2
    assert {
        "gpu": Workload(256, 100, 1024, 512, 8192, 0.0),
        "cpu": Workload(32, 16, 64, 128, 512, 0.0),
    } == QUEUES
    assert WORKLOADS["cpu"] == Workload(64, 16, 256, 0, 0, 0.0)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"requests": 0}, "requests"),
        ({"shortest": 0}, "lengths"),
        ({"longest": 2}, "lengths"),
        ({"shared": -1}, "shared"),
        ({"long": -1}, "long"),
    ],
)
def test_a_workload_that_cannot_be(change, word):
    with pytest.raises(ValueError, match=word):
        replace(UNEVEN, **change)
    assert replace(UNEVEN, requests=1, shortest=24, shared=0, long=0)


def test_a_shape_is_a_model_folder_with_a_tokenizer():
    with shape_folder("tiny") as folder:
        slow, light = (
            load_tokenizer(str(folder)),
            load_light_tokenizer(str(folder)),
        )
        assert len(slow) == 512
        assert light.token(511) and light.token(512) is None
        ids = [0, 25, 26, 300, 511]
        text = slow.decode(ids)
        assert text == light.decode(ids) and text.startswith(" a z aa ")
        assert slow(text).input_ids == light.encode(text) == ids
        chat = [{"role": "user", "content": text}]
        assert light.apply_chat_template(chat) == text
    assert not folder.exists()


# As they are counted for the models of these names.
PARAMETERS = {
    "smollm2-135m": 134_515_008,
    "qwen3-0.6b": 596_049_920,
    "qwen3-8b": 8_190_735_360,
    "qwen3-30b-a3b": 30_532_122_624,
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_shape_has_the_parameters_of_its_model(name):
    shape = dict(SHAPES[name])
    config = AutoConfig.for_model(shape.pop("model_type"), **shape)
    with torch.device("meta"):
        state = create_model(ModelConfig.from_hf(config)).state_dict()
    assert sum(w.numel() for w in state.values()) == PARAMETERS[name]


def test_a_shape_has_the_context_and_numbers_of_its_model():
    for name, base in (("qwen3-0.6b", 1e6), ("smollm2-135m", 1e5)):
        shape = dict(SHAPES[name])
        config = AutoConfig.for_model(shape.pop("model_type"), **shape)
        found = ModelConfig.from_hf(config)
        longest = 40960 if name == "qwen3-0.6b" else 8192
        assert found.rotary_config.max_position == longest
        assert found.rotary_config.base == base
        assert found.rms_norm_eps == 1e-6 and found.hidden_act == "silu"
        assert found.tie_word_embeddings and shape["dtype"] == "bfloat16"


def test_an_unknown_shape_or_none_or_both():
    with pytest.raises(ValueError, match="tiny"), shape_folder("huge"):
        pass
    for model, shape in ((None, None), ("a", "tiny")):
        with (
            pytest.raises(ValueError, match="either"),
            open_subject(model, shape),
        ):
            pass
    with open_subject("a", None, "float32", "cpu", {"page_size": 2}) as subject:
        assert subject == Subject(
            "a", False, "float32", "cpu", {"page_size": 2}
        )
    with open_subject(None, "tiny") as subject:
        assert subject.random and subject.settings == {}


def test_settings_are_read_by_their_type():
    given = ["page_size=16", "overlap=false", "cache_type=naive"]
    given += ["memory_ratio=0.5", "num_page_override=7"]
    given += ["cuda_graph_bs=[1, 2]", "max_seq_len_override=null"]
    assert parse_settings(given) == {
        "page_size": 16,
        "overlap": False,
        "cache_type": "naive",
        "memory_ratio": 0.5,
        "num_page_override": 7,
        "cuda_graph_bs": [1, 2],
        "max_seq_len_override": None,
    }
    assert parse_settings(["memory_ratio=1"]) == {"memory_ratio": 1.0}
    for wrong in (
        *("page_size", "page_size=x", "page_size=true", "overlap=1"),
        *("pagesize=1", "device=cpu", "offline_mode=false", "_unique_suffix=a"),
        *("num_page_override=x", "num_page_override=true", "cache_type=3"),
        *("cuda_graph_bs=4", "cuda_graph_bs=[x]", "max_seq_len_override=[1]"),
    ):
        with pytest.raises(ValueError, match=wrong.partition("=")[0]):
            parse_settings([wrong])


@pytest.mark.parity
def test_our_run_has_the_answers_and_when_they_came(tiny):
    asked = [Request(ids, 5 + n) for n, ids in enumerate(prompts(tiny.folder))]
    with tiny.engine() as llm:
        run = llm.run(asked, 0.0)
        again = llm.run(asked, 0.0)
    for request, ids in zip(asked, run.answers, strict=True):
        assert_parity(
            ids, reference(tiny.folder, request.prompt, request.output)
        )
    assert again.answers == run.answers
    times = [when for when, _ in run.batches]
    assert times == sorted(times) and times[0] > 0 and times[-1] < run.seconds
    made = sum(r.output for r in asked)
    assert sum(len(uids) for _, uids in run.batches) == made
    # The first token of an answer comes after no other.
    assert len(run.gaps()) == made - len(asked)
    assert all(gap > 0 for gap in run.gaps())
    assert run.hit_rate < again.hit_rate <= 1
    assert len(again.batches) <= len(run.batches)


def test_gaps_are_those_between_the_tokens_of_one_answer():
    batches = [(1.0, [7]), (1.5, [7, 8]), (3.5, [8]), (4.0, [7])]
    assert Run(4.0, [], batches).gaps() == [0.5, 2.0, 2.5]


def test_a_request_that_cannot_be_answered_is_no_result(tiny):
    with (
        tiny.engine(max_seq_len_override=16) as llm,
        pytest.raises(ValueError, match="not answered"),
    ):
        llm.run([Request([1] * 20, 4)], 0.0)


def test_an_engine_gives_its_memory_back(tiny):
    import gc
    import weakref

    with tiny.engine() as llm:
        cache = weakref.ref(llm.engine.ctx.kv_cache)
        del llm
    gc.collect()
    assert cache() is None


@pytest.mark.parity
@pytest.mark.parametrize("peer", PEERS)
def test_peers_give_the_same_answers(tiny, peer):
    requests = UNEVEN.draw(500)
    with tiny.engine() as llm:
        ours = llm.run(requests, 0.0)
    with tiny.transformers() as hf:
        theirs = PEERS[peer](hf, requests, 0.0, 3)
        assert theirs.answers == ours.answers
        drawn = PEERS[peer](hf, requests[:2], 5.0, 3)
    assert [len(ids) for ids in drawn.answers] == [
        r.output for r in requests[:2]
    ]
    assert drawn.answers != ours.answers[:2]
    assert 0 < theirs.seconds < 600


def test_random_weights_are_the_same_at_every_start():
    work = Workload(2, 4, 8)
    with open_subject(None, "tiny", "float32", "cpu", SMALL) as subject:
        answers = []
        for _ in range(2):
            with subject.engine() as llm:
                answers.append(llm.run(work.draw(512), 0.0).answers)
        assert answers[0] == answers[1]
        with subject.transformers() as hf:
            assert hf.config.hidden_size == 128
            assert len(PEERS["static"](hf, work.draw(512), 0.0, 2).answers) == 2


def way(*seconds: float, batches: int = 0):
    """One that takes so long, one run after the other."""
    left = iter(seconds)

    def answer(requests):
        return Run(next(left), [], [(0.0, [])] * batches)

    return answer


def test_a_contest_compares_medians_of_tokens_asked_for():
    said: list[str] = []
    requests = [Request([1], 60), Request([1, 2], 40)]
    ways = {
        OURS: way(9, 1, 2, 4, batches=5),
        "slow": way(9, 10, 5, 4),
    }
    contest = Contest(ways, said.append)
    contest.warm_up(requests)
    for _ in range(3):
        contest.play(requests)
    ours, slow = contest.rows()
    assert ours["tokens/s"] == 50 and ours["ours is"] == "1.00 x"
    assert slow["tokens/s"] == 20 and slow["ours is"] == "2.50 x"
    assert slow["rounds"] == [10, 20, 25]
    assert contest.steps == 5 and len(said) == 6


def test_a_peer_that_fails_says_why_and_ours_must_not():
    def broken(requests):
        raise RuntimeError("no such\n  kernel")

    said: list[str] = []
    contest = Contest({OURS: way(1, 1), "broken": broken}, said.append)
    contest.warm_up([Request([1], 2)])
    contest.play([Request([1], 2)])
    assert contest.rows()[1] == {
        "": "broken",
        "rounds": "does not work here: no such kernel",
    }
    assert sum("broken" in line for line in said) == 1
    with pytest.raises(RuntimeError, match="kernel"):
        Contest({OURS: broken}, said.append).play([Request([1], 2)])


def test_offline_measures_ours_and_the_peers_that_are_named(tiny):
    said: list[str] = []
    report = measure_offline(tiny, UNEVEN, ["static"], 2, said.append)
    assert [row[""] for row in report.rows] == [OURS, "static"]
    assert all(len(row["rounds"]) == 2 for row in report.rows)
    assert all(row["tokens/s"] > 0 for row in report.rows)
    assert len(said) == 4
    assert report.setup["dtype"] == "float32"
    assert report.setup["page_size"] == 4
    assert report.setup["steps of ours"] > 24
    with pytest.raises(ValueError, match="one-by-one"):
        measure_offline(tiny, UNEVEN, ["static", "fast"], 1, say_nothing)


def test_a_report_in_three_forms(tmp_path):
    rows = [
        {"": "a", "n": 12345, "x": 1234.5, "l": [1.0, 10.0]},
        {"": "b", "n": None, "x": 12.345, "l": "none"},
    ]
    report = Report("Two", ["", "n", "x", "l"], rows, {"device": "d"})
    report.write(tmp_path / "deep" / "r.md")
    lines = (tmp_path / "deep" / "r.md").read_text().splitlines()
    assert lines[0] == "**Two**" and lines[-1] == "device d"
    assert lines[2:6] == [
        "|  | n | x | l |",
        "| --- | ---: | ---: | ---: |",
        "| a | 12,345 | 1,234 | 1.00 10.0 |",
        "| b |  | 12.3 | none |",
    ]
    report.write(tmp_path / "r.json")
    assert json.loads((tmp_path / "r.json").read_text()) == {
        "title": "Two",
        "columns": ["", "n", "x", "l"],
        "rows": rows,
        "setup": {"device": "d"},
    }
    with pytest.raises(ValueError, match="json"):
        report.write(tmp_path / "r.txt")
    shown = io.StringIO()
    report.show(Console(file=shown, width=80))
    assert all(text in shown.getvalue() for text in ("12,345", "12.3", "d"))


def test_the_machine_is_named():
    found = machine(torch.device("cpu"))
    assert found["threads"] == torch.get_num_threads()
    assert found["torch"] == torch.__version__ and found["device"]


def test_the_command_writes_what_it_found(tmp_path):
    paths = [tmp_path / "a.json", tmp_path / "a.md"]
    words = ["offline", "--shape", "tiny", "--device", "cpu", "--rounds", "1"]
    words += ["--requests", "3", "--shortest", "2", "--longest", "6"]
    words += ["--set", "num_page_override=512", "--out", str(paths[0])]
    done = CliRunner().invoke(app, [*words, "--out", str(paths[1])])
    assert done.exit_code == 0, done.output
    found = json.loads(paths[0].read_text())
    assert found["title"].startswith("3 requests")
    assert found["rows"][0][""] == OURS
    assert found["setup"]["temperature"] == 0.6
    assert found["setup"]["num_page_override"] == 512
    assert "| ours |" in paths[1].read_text()


def test_help_names_the_commands_and_nothing_else():
    done = CliRunner().invoke(app, ["--help"])
    assert all(
        name in done.output for name in ("offline", "ablation", "online")
    )
    assert "completion" not in done.output


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["offline"], "either a --model or a --shape"),
        (["offline", "--shape", "huge"], "no shape"),
        # Before anything else is looked at.
        (["offline", "--shape", "huge", "--out", "x.csv"], "nor in .md"),
        (["offline", "--shape", "tiny", "--set", "x=1"], "x=1"),
        (["offline", "--shape", "tiny", "--workload", "tpu"], "gpu, cpu"),
        (["offline", "--shape", "tiny", "--requests", "0"], "requests"),
        (["offline", "--shape", "tiny", "--rounds", "0"], "rounds"),
        (["offline", "--model", "/nowhere/at/all"], "/nowhere/at/all"),
        (["offline", "--fast"], "--fast"),
        (["faster"], "faster"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(words, reason, monkeypatch):
    monkeypatch.setattr("sys.argv", ["benchmark", *words])
    with pytest.raises(SystemExit) as end:
        main()
    assert str(end.value).startswith("error: ") and reason in str(end.value)
    assert "\n" not in str(end.value)
