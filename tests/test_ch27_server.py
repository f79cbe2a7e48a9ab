"""Speculation as users meet it: settings, one request's wish, numbers."""

import msgpack
import pytest

from minisgl import message as m
from minisgl.core import SamplingParams
from minisgl.distributed import DistributedInfo
from minisgl.llm import LLM
from minisgl.scheduler import SchedulerConfig
from minisgl.scheduler.guessing import create_drafter
from minisgl.server.args import parse_args
from minisgl.server.generation import Tokens
from minisgl.server.respond import usage
from tests.live import GREEDY, Live, events
from tests.parity import model_under_test, prompts, reference
from tests.samples import read
from tools.models import model_path

FOLDER = str(model_under_test("qwen3-tiny"))
ACCEPTED = "minisgl_accepted_tokens_total"
REJECTED = "minisgl_rejected_tokens_total"


def config(folder=FOLDER, ranks=1, **settings) -> SchedulerConfig:
    return SchedulerConfig(
        str(folder), DistributedInfo(0, ranks), "float32", **settings
    )


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"speculative": "eagle"}, "must be ngram or draft, got 'eagle'"),
        ({"speculative": "draft"}, "must be given with speculative draft"),
        (
            {"speculative": "ngram", "speculative_draft_model": "x"},
            "and only then",
        ),
        ({"speculative_tokens": 0}, "from 1 to 64, got 0"),
        ({"speculative_tokens": 65}, "from 1 to 64, got 65"),
        ({"speculative_ngram_min": 0}, "ngram_min must be at least 1"),
        (
            {"speculative_ngram_min": 5},
            "ngram_max must be at least speculative_ngram_min",
        ),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, reason):
    with pytest.raises(ValueError, match=reason):
        config(**settings)


def test_models_that_do_not_go_together_are_refused_at_the_start():
    draft = {
        "speculative": "draft",
        "speculative_draft_model": str(model_path("qwen2-tiny")),
    }
    with pytest.raises(ValueError, match=r"another vocabulary than .*512"):
        create_drafter(config(**draft))
    draft["speculative_draft_model"] = FOLDER
    with pytest.raises(ValueError, match="runs on one rank; use"):
        create_drafter(config(ranks=2, **draft))


@pytest.mark.parametrize("way", ["ngram", "draft"])
def test_states_cannot_be_taken_back_so_hybrid_models_are_refused(way):
    hybrid = model_path("qwen3.5-tiny")
    draft = str(hybrid) if way == "draft" else None
    settings = {"speculative": way, "speculative_draft_model": draft}
    with pytest.raises(ValueError, match="state cannot be taken back"):
        create_drafter(config(hybrid, **settings))


def test_options_of_the_command_line():
    words = [
        "--model", FOLDER,
        "--speculative", "draft",
        "--speculative-tokens", "5",
        "--speculative-draft-model", "x",
        "--speculative-ngram-min", "1",
        "--speculative-ngram-max", "6",
    ]  # fmt: skip
    args, _ = parse_args(words)
    found = [
        args.speculative,
        args.speculative_tokens,
        args.speculative_draft_model,
        args.speculative_ngram_min,
        args.speculative_ngram_max,
    ]
    assert found == ["draft", 5, "x", 1, 6]
    assert parse_args(words[:2])[0].speculative is None


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--speculative", "x"], "--speculative"),
        (["--speculative", "ngram", "--speculative-tokens", "0"], "from 1 to"),
        (["--speculative", "draft"], "--speculative-draft-model must be given"),
    ],
)
def test_options_that_make_no_sense_end_in_one_line(words, reason, capsys):
    with pytest.raises(SystemExit):
        parse_args(["--model", FOLDER, *words])
    [line] = capsys.readouterr().err.splitlines()
    assert reason in line


def test_messages_carry_the_wish_and_the_counts():
    wish = SamplingParams(speculate=False)
    pairs = [
        (m.BaseTokenizerMsg, m.TokenizeMsg(1, "hi", wish)),
        (
            m.BaseTokenizerMsg,
            m.DetokenizeMsg(1, 5, False, accepted_tokens=3, rejected_tokens=5),
        ),
        (
            m.BaseFrontendMsg,
            m.UserReply(1, "a", False, accepted_tokens=3, rejected_tokens=0),
        ),
    ]
    for base, msg in pairs:
        raw = msgpack.packb(base.encoder(msg))
        assert base.decoder(msgpack.unpackb(raw)) == msg
    with pytest.raises(ValueError, match="speculate must be true or false"):
        SamplingParams(speculate=1)  # type: ignore[arg-type]


def test_usage_names_drafts_where_there_were_any():
    plain = usage(Tokens(3, 2, 5)).model_dump(exclude_unset=True)
    assert "completion_tokens_details" not in plain
    found = usage(Tokens(3, 2, 5, 4, 6)).model_dump(exclude_unset=True)
    assert found["completion_tokens_details"] == {
        "accepted_prediction_tokens": 4,
        "rejected_prediction_tokens": 6,
    }


def test_offline_requests_can_do_without_too():
    llm = LLM(
        FOLDER, "float32", device="cpu", num_page_override=512,
        speculative="ngram", speculative_ngram_min=1,
    )  # fmt: skip
    prompt = prompts(FOLDER)[2] * 2
    params = [
        SamplingParams(max_tokens=24, ignore_eos=True, speculate=wish)
        for wish in (True, False)
    ]
    one, other = llm.generate([prompt] * 2, params, progress=False)
    assert one["token_ids"] == other["token_ids"]
    llm.cache_manager.check_integrity()


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    options = [
        "--speculative", "draft",
        "--speculative-draft-model", FOLDER,
        "--speculative-tokens", "4",
    ]  # fmt: skip
    with Live(tmp_path_factory.mktemp("live"), FOLDER, *options) as server:
        yield server.wait_ready()


def scrape(live) -> dict[str, float]:
    with live.open("/metrics") as answer:
        return read(answer.read().decode())


def check_stream(live):
    """A stream has every token of a step."""
    ids = prompts(FOLDER)[2]
    body = {
        "prompt": ids,
        "max_tokens": 11,
        **GREEDY,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    with live.open("/v1/completions", body) as answer:
        *found, last = events(answer)
    assert last == "[DONE]"
    assert "usage" in found[-1], found[-1]
    told = found[-1]["usage"]
    assert told["completion_tokens"] == 11
    details = told["completion_tokens_details"]
    assert details["accepted_prediction_tokens"] == 8


@pytest.mark.parity
def test_a_server_tells_how_many_drafts_were_right(live):
    """All in one test: a scheduler that fails takes its server along."""
    ids = prompts(FOLDER)[1]
    body = {
        "prompt": ids,
        "max_tokens": 21,
        **GREEDY,
        "logprobs": 0,
    }
    before, texts = scrape(live), []
    for wish in (True, False, None):
        status, made = live.post("/v1/completions", body | {"speculate": wish})
        assert status == 200, made
        texts.append(made["choices"][0]["text"])
        details = made["usage"].get("completion_tokens_details")
        assert made["usage"]["completion_tokens"] == 21
        if wish is False:
            assert details is None
        else:
            # One token from the prompt, then four steps of five.
            assert details == {
                "accepted_prediction_tokens": 16,
                "rejected_prediction_tokens": 0,
            }
    after = scrape(live)
    assert after[ACCEPTED] - before[ACCEPTED] == 32
    assert after[REJECTED] == before[REJECTED]
    assert len(set(texts)) == 1
    from minisgl.utils import load_tokenizer

    expected = reference(FOLDER, ids, 64).ids[:21]
    decoded = load_tokenizer(FOLDER).decode(expected, skip_special_tokens=True)
    assert texts[0] == decoded
    check_stream(live)


def test_a_wish_that_is_none_is_named(live):
    status, told = live.post(
        "/v1/completions", {"prompt": "Hi", "speculate": "no"}
    )
    assert status == 400 and told["error"]["param"] == "speculate"
