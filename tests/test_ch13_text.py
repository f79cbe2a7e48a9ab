"""Chapter 13: text to tokens and back, without torch and without transformers."""

import json
import shutil
import subprocess
import sys
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import minisgl
from minisgl.llm import LLM
from minisgl.message import TokenizeMsg
from minisgl.sampling_params import SamplingParams
from minisgl.tokenizer.chat import render_chat
from minisgl.tokenizer.text import load_light_tokenizer
from minisgl.tokenizer.tokenize import TokenizeManager
from tests.parity import assert_parity, model_under_test, reference
from tests.vocabularies import (
    NAMES,
    full_text,
    load_pair,
    pair_of,
    searching,
)
from tools.models import model_path

ROOT = Path(minisgl.__file__).parents[1]
PARAMS = SamplingParams()
CHAT = [
    {"role": "user", "content": "Hi <s>there</s> "},
    {"role": "assistant", "content": "  你好 🎉\n"},
    {"role": "user", "content": "<|im_end|> and?"},
]
TEXTS = [
    "",
    " ",
    "  two  spaces  ",
    "The capital of France\n\n is Paris.",
    "你好 😀 é \u200b",
    "<s> [INST] x<|im_end|>y <unk>",
]
few = searching(60)


@pytest.fixture(scope="module", params=NAMES)
def pair(request, tmp_path_factory):
    return load_pair(request.param, tmp_path_factory.mktemp("kinds"))


@pytest.fixture
def folder(tmp_path):
    """A copy of a folder's tokenizer, to be changed."""

    def copy(name: str, **config) -> Path:
        for file in ("config.json", "tokenizer.json"):
            shutil.copy(model_path(name) / file, tmp_path / file)
        old = json.loads(
            (model_path(name) / "tokenizer_config.json").read_text()
        )
        new = {k: v for k, v in (old | config).items() if v is not None}
        write(tmp_path / "tokenizer_config.json", new)
        return tmp_path

    return copy


def write(path: Path, content: object) -> None:
    path.write_text(json.dumps(content))


def chat_ids(theirs, turns) -> list[int]:
    return theirs.apply_chat_template(
        turns, add_generation_prompt=True, tokenize=True, return_dict=False
    )


def tokens(tokenizer, *texts) -> list:
    """Ids, or the error, of each as the text of a request."""
    msgs = [TokenizeMsg(i, text, PARAMS) for i, text in enumerate(texts)]
    found = TokenizeManager(tokenizer).tokenize(msgs)
    return [x if isinstance(x, ValueError) else x.tolist() for x in found]


# The same as transformers.


def test_ids_are_those_of_transformers(pair):
    @few
    @given(st.text(max_size=40))
    def check(text):
        if type(pair.theirs).__name__ == "Qwen2Tokenizer":
            # It composes accents whatever this small tokenizer.json says.
            text = unicodedata.normalize("NFC", text)
        for special in (True, False):
            theirs = pair.theirs(text, add_special_tokens=special).input_ids
            assert pair.ours.encode(text, special) == theirs

    for text in TEXTS:
        check = example(text)(check)
    check()
    for role, name in pair.ours.names.items():
        assert name == getattr(pair.theirs, role)


def test_texts_of_ids_are_those_of_transformers(pair):
    size = len(pair.theirs)

    @few
    @given(st.lists(st.integers(0, size + 20), max_size=30))
    def check(ids):
        assert pair.ours.decode(ids) == full_text(pair.theirs, ids)

    check()
    assert pair.ours.decode([-1, 2**31, 2**32, 2**63, -(2**40)]) == ""


def test_a_chat_is_that_of_transformers(pair):
    for turns in (CHAT[:1], CHAT, CHAT + CHAT[1:]):
        [ids] = tokens(pair.ours, turns)
        assert ids == chat_ids(pair.theirs, turns)


@pytest.mark.parametrize("name", ["llama3-tiny", "mistral-tiny", "bytes"])
def test_c21_one_bos_in_a_chat_and_one_before_a_text(name, tmp_path):
    pair = load_pair(name, tmp_path)
    bos = pair.theirs.bos_token_id
    chat, text = tokens(pair.ours, CHAT[:1], "Hello there")
    assert chat == chat_ids(pair.theirs, CHAT[:1])
    assert text == pair.theirs("Hello there").input_ids
    for ids in (chat, text):
        assert ids[0] == bos
        assert bos not in ids[1:3]
    [plain] = tokens(pair.ours, "")
    assert plain == [bos]


@pytest.mark.parity
def test_c21_offline_and_online_give_the_same_ids():
    folder = model_under_test("llama3-tiny")
    llm = LLM(str(folder), "float32", device="cpu", num_page_override=512)
    ours = load_light_tokenizer(str(folder))
    want = SamplingParams(max_tokens=8, ignore_eos=True)
    for text in TEXTS[2:]:
        [ids] = tokens(ours, text)
        assert llm._tokenize_one(text).tolist() == ids
        offline, online = llm.generate([text, ids], want)
        assert offline == online
        assert_parity(online["token_ids"], reference(folder, ids, 8))


@pytest.mark.parametrize("name", ["smollm2-135m", "qwen3-tiny"])
def test_c21_without_a_template_only_chats_are_refused(name, tmp_path, folder):
    load_pair(name, tmp_path)
    bare = load_light_tokenizer(str(folder(name, chat_template=None)))
    chat, text, again = tokens(bare, CHAT, "Hello", CHAT)
    assert text == pair_of(model_path(name)).theirs("Hello").input_ids
    for error in (chat, again):
        assert "has no chat template: send a text to /v1/comp" in str(error)
        assert "chat_template.jinja" in str(error)
        assert "\n" not in str(error)


# What a folder may hold.


def assert_same(folder: Path, *texts: str):
    pair = pair_of(folder)
    for text in texts:
        ids = pair.theirs(text).input_ids
        assert pair.ours.encode(text) == ids
        shown = pair.theirs.decode(ids, skip_special_tokens=True)
        assert pair.ours.decode(ids) == shown
    expected = pair.theirs.special_tokens_map
    assert dict(pair.ours.names) == expected
    return pair


def added(content: str, special: bool, **more) -> dict:
    flags = dict.fromkeys(
        ["lstrip", "rstrip", "single_word", "normalized"], False
    )
    return {"content": content, "special": special} | flags | more


OBJECT = {"__type": "AddedToken"}
CONFIGS = {
    "a token by its role": {"mask_token": "<mask>", "eos_token": "time"},
    "a role as an object": {"sep_token": added("a", True, **OBJECT)},
    "tokens by id": {
        "added_tokens_decoder": {
            "513": added("<b>", False),
            "512": added("<a>", True, lstrip=True),
        }
    },
    "a list of more": {"additional_special_tokens": ["<x>", "the"]},
    "a newer list": {"extra_special_tokens": ["<x>", "the"]},
    "more by role": {"extra_special_tokens": {"x_token": "<x>"}},
    "a role nobody knows": {"image_token": "<img>"},
    "a list of objects": {
        "additional_special_tokens": [added("<x>", True, **OBJECT)]
    },
}


@pytest.mark.parametrize("name", CONFIGS)
def test_tokens_that_only_the_config_knows(name, folder):
    text = "a time <mask> <a><b> the <x> <img> cat"
    assert_same(folder("qwen3-tiny", **CONFIGS[name]), text)


def test_the_older_map_of_special_tokens_counts_unless_there_are_ids(folder):
    place = folder("qwen3-tiny")
    write(
        place / "special_tokens_map.json",
        {"unk_token": "<u>", "eos_token": added("</e>", True)},
    )
    pair = assert_same(place, "a<u>b</e>c")
    assert pair.ours.names["eos_token"] == "</e>"
    ids = {"added_tokens_decoder": {"512": added("<u>", True)}}
    pair = assert_same(folder("qwen3-tiny", **ids), "a<u>b</e>c")
    assert pair.ours.names["eos_token"] == "<|im_end|>"


def test_a_prompt_is_neither_cut_nor_filled_up(folder):
    place = folder("qwen3-tiny")
    content = json.loads((place / "tokenizer.json").read_text())
    content["truncation"] = {
        "direction": "Right", "max_length": 4, "strategy": "LongestFirst",
        "stride": 0,
    }  # fmt: skip
    content["padding"] = {
        "strategy": {"Fixed": 9}, "direction": "Right", "pad_id": 0,
        "pad_type_id": 0, "pad_token": "!", "pad_to_multiple_of": None,
    }  # fmt: skip
    write(place / "tokenizer.json", content)
    assert_same(place, "a", "one two three four five six")


def test_without_a_config_the_tokenizer_is_enough(folder):
    place = folder("llama3-tiny")
    (place / "tokenizer_config.json").unlink()
    ours = load_light_tokenizer(str(place))
    assert ours.encode("Hi") == load_light_tokenizer(
        str(model_path("llama3-tiny"))
    ).encode("Hi")
    assert ours.names == {}


def test_templates_by_name_and_in_a_file(folder):
    def rendered(place: Path) -> str:
        return load_light_tokenizer(str(place)).apply_chat_template(CHAT)

    named = [
        {"name": "default", "template": "plain"},
        {"name": "tool_use", "template": "{{ tools | tojson }}"},
    ]
    place = folder("qwen3-tiny", chat_template=named)
    assert rendered(place) == "plain"
    as_dict = {each["name"]: each["template"] for each in named}
    assert rendered(folder("qwen3-tiny", chat_template=as_dict)) == "plain"
    with pytest.raises(ValueError, match="has no chat template"):
        rendered(folder("qwen3-tiny", chat_template=named[1:]))
    (place / "chat_template.jinja").write_text("file 你")
    assert rendered(place) == "file 你"
    theirs = pair_of(place).theirs
    assert theirs.apply_chat_template(CHAT, tokenize=False) == "file 你"


def test_a_folder_that_is_no_tokenizer_is_one_line(tmp_path, folder):
    with pytest.raises(
        FileNotFoundError, match=r"has no tokenizer\.json"
    ) as no:
        load_light_tokenizer(str(tmp_path))
    (tmp_path / "tokenizer.model").write_bytes(b"\n\x0e")
    with pytest.raises(FileNotFoundError, match="let transformers make one"):
        load_light_tokenizer(str(tmp_path))
    with pytest.raises(FileNotFoundError, match="'no/where' is not a folder"):
        load_light_tokenizer("no/where")
    place = folder("qwen3-tiny")
    (place / "tokenizer_config.json").write_text("{")
    with pytest.raises(ValueError, match=r"tokenizer_config\.json cannot be"):
        load_light_tokenizer(str(place))
    (place / "tokenizer.json").write_text('{"model": 1}')
    with pytest.raises(
        ValueError, match=r"tokenizer\.json cannot be"
    ) as damaged:
        load_light_tokenizer(str(place))
    for error in (no, damaged):
        assert "\n" not in str(error.value)


# Templates.

TEMPLATES = {
    "blocks": "{% for m in messages %}\n  {% if m.role %}\n x\n  {% endif %}\n"
    "{% endfor %}",
    "tojson": "{{ messages | tojson }}{{ messages | tojson(indent=1) }}"
    "{{ {'b': 1, 'a': '<é>'} | tojson(sort_keys=true) }}",
    "tojson in ascii": "{{ messages | tojson(ensure_ascii=true, "
    "separators=(',', ':')) }}",
    "loop controls": "{% for m in messages %}{% if loop.index == 2 %}{% break %}"
    "{% endif %}{{ m.content }}{% endfor %}",
    "generation": "{% for m in messages %}{% generation %}{% set x = 1 %}"
    "{{ m.content }}{% endgeneration %}{{ x }}{% endfor %}",
    "namespace": "{% set ns = namespace(n=0) %}{% for m in messages %}"
    "{% set ns.n = ns.n + m.content | length %}{% endfor %}{{ ns.n }}",
    "tokens": "{{ bos_token }}{{ eos_token }}{{ nothing }}",
    "macro": "{% macro say(m) %}[{{ m.role | upper }}]{% endmacro %}"
    "{% for m in messages %}{{ say(m) }}{% endfor %}",
    "prompt": "{% if add_generation_prompt %}go{% endif %}"
    "{% if tools is none and documents is none %}!{% endif %}",
    "left out": "{% for m in messages %}{{ m.name is defined }}{{ m.keys() | list }}"
    "{% endfor %}",
    "today": "{{ strftime_now('%Y-%m-%d') }}{{ strftime_now is defined }}",
    "slices": "{{ messages[1:][::-1] | map(attribute='role') | join('|') }}",
    "strings": "{{ messages[0].content.strip().split(' ')[-1].lstrip('<') }}",
    "dicts": "{{ dict(a=1, b=messages[0].role).items() | list }}",
}  # fmt: skip


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_means_what_it_means_in_transformers(name, tmp_path):
    pair = load_pair("mistral-tiny", tmp_path)
    turns = [{**turn, "name": None} for turn in CHAT]
    theirs = pair.theirs.apply_chat_template(
        turns,
        chat_template=TEMPLATES[name],
        add_generation_prompt=True,
        tokenize=False,
    )
    ours = render_chat(TEMPLATES[name], turns, pair.ours.names)
    assert ours == theirs
    assert len(theirs) > 1


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ raise_exception('only one turn') }}", "only one turn"),
        ("{{ messages[0].content + 1 }}", "TypeError"),
        ("{{ messages[9].content }}", "UndefinedError"),
        ("{% for %}", "TemplateSyntaxError"),
        ("{{ ().__class__.__base__.__subclasses__() }}", "SecurityError"),
        ("{{ messages.append(1) }}", "SecurityError"),
        ("{{ range(10 ** 9) | list }}", "OverflowError"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
    ],
)
def test_a_template_that_fails_is_a_value_error(template, reason):
    with pytest.raises(ValueError, match="the chat template fails: ") as error:
        render_chat(template, CHAT, {})
    assert reason in str(error.value)


@pytest.mark.parametrize("turns", [[], ["hi"], [CHAT[0], None]])
def test_a_chat_is_turns(turns):
    with pytest.raises(ValueError, match="a chat is a list of turns"):
        render_chat("x", turns, {})


# Requests.


def test_what_one_request_does_wrong_is_its_own_answer():
    tokenizer = load_light_tokenizer(str(model_path("qwen3-tiny")))
    good = tokens(tokenizer, "Hello")
    bad = {
        "a prompt is no int": 5,
        "a prompt is no NoneType": None,
        "a prompt is no dict": {"role": "user"},
        "a chat is a list of turns": [],
        "the chat template fails": [{"role": "user"}],
        "TypeError": [{"role": "user", "content": 5}],
        "-1 is no token id": [3, -1],
        "True is no token id": [True],
        "1.5 is no token id": [1, 1.5],
        "2147483648 is no token id": [2**31],
        "TypeError: TextInput": "half a pair: \ud83d",
    }
    found = tokens(tokenizer, "Hello", *bad.values(), "Hello")
    assert [found[0], found[-1]] == good * 2
    for error, reason in zip(found[1:-1], bad, strict=True):
        assert isinstance(error, ValueError) and reason in str(error)


def test_prompts_are_arrays_for_a_message():
    tokenizer = load_light_tokenizer(str(model_path("qwen3-tiny")))
    msgs = [TokenizeMsg(i, t, PARAMS) for i, t in enumerate(["", "Hi", [4, 0]])]
    arrays = TokenizeManager(tokenizer).tokenize(msgs)
    assert [a.dtype for a in arrays] == [np.int32] * 3
    assert [a.ndim for a in arrays] == [1] * 3
    assert arrays[0].size == 0
    assert arrays[2].tolist() == [4, 0]
    assert TokenizeManager(tokenizer).tokenize([]) == []


LIGHT = """
import sys
sys.path.insert(0, sys.argv[1])
from minisgl.tokenizer import tokenize_worker
from minisgl.tokenizer.text import load_light_tokenizer

tokenizer = load_light_tokenizer(sys.argv[2])
turns = [{"role": "user", "content": "Hi"}]
assert tokenizer.decode(tokenizer.encode(tokenizer.apply_chat_template(turns)))
heavy = {"torch", "transformers", "huggingface_hub"} & set(sys.modules)
assert not heavy, f"too much is loaded: {heavy}"
"""


def test_a_folders_tokenizer_loads_nothing_heavy():
    place = str(model_path("qwen3-tiny"))
    command = [sys.executable, "-c", LIGHT, str(ROOT), place]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
