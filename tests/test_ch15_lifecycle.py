"""The life of real servers: how they start, how they end, and what they leave."""

import json
import os
import re
import shutil
import signal
import socket
import tempfile
import time
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

from tests.live import (
    Live,
    events,
    free_ports,
    has_torch,
    is_free,
    read_proc,
    wait_until,
)
from tests.parity import reference
from tools.models import model_path

QWEN, LLAMA = "qwen3-tiny", "llama3-tiny"
QUESTION = [{"role": "user", "content": "Why is the sky blue?"}]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    """Servers for one ending each, started together; two have neighbouring ports.

    neighbour: serves another model. twice: its model has no chat template.
    """
    folder = tmp_path_factory.mktemp("fleet")
    first, second = free_ports(2)
    model, other = model_path(QWEN), model_path(LLAMA)
    bare = without_template(folder / "bare")
    servers = {
        "term": Live(folder / "term", model, port=first),
        "neighbour": Live(folder / "neighbour", other, port=second),
        "scheduler": Live(folder / "scheduler", model),
        "tokenizer": Live(folder / "tokenizer", model),
        "split": Live(folder / "split", model, "--num-tokenizer", "2"),
        "twice": Live(folder / "twice", bare, "--silent-output"),
    }
    try:
        for server in servers.values():
            server.wait_ready()
        yield servers
    finally:
        for server in servers.values():
            server.close()


def without_template(folder: Path) -> Path:
    copy_of(QWEN, folder)
    config = folder / "tokenizer_config.json"
    settings = json.loads(config.read_text())
    del settings["chat_template"]
    config.write_text(json.dumps(settings))
    return folder


def copy_of(model: str, folder: Path, *without: str) -> Path:
    ignored = shutil.ignore_patterns(*without)
    shutil.copytree(model_path(model), folder, ignore=ignored)
    return folder


def scheduler_of(server: Live) -> int:
    [found] = filter(has_torch, server.children())
    return found


def tokenizers_of(server: Live) -> list[int]:
    return [pid for pid in server.children() if not has_torch(pid)]


def model_of(server: Live) -> str:
    with server.open("/v1/models") as answer:
        return json.loads(answer.read())["data"][0]["id"]


def complete(server: Live) -> str:
    body = {"model": model_of(server), "prompt": "Once upon", "max_tokens": 8}
    status, answer = server.post("/v1/completions", body | {"temperature": 0})
    assert status == 200, answer
    return answer["choices"][0]["text"]


def refuses(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def assert_ends_in_error(stream) -> None:
    """The stream says that it failed, instead of just breaking off."""
    last = [event for event in events(stream) if isinstance(event, dict)][-1]
    assert "error" in last, last


# A server that runs


def test_ready_line_has_a_command_that_works(fleet):
    server = fleet["term"]
    printed = server.out.read_text().splitlines()
    [line] = [line for line in printed if line.startswith("ready")]
    assert f"http://127.0.0.1:{server.port}" in line and QWEN in line
    [command] = [line for line in printed if line.startswith("curl ")]
    if shutil.which("curl"):
        answer = json.loads(os.popen(f"{command} -s").read())
        assert answer["choices"][0]["message"]["content"]


def test_only_the_scheduler_loads_torch(fleet):
    for server in fleet.values():
        assert not has_torch(server.process.pid)
        assert has_torch(scheduler_of(server))
    assert len(tokenizers_of(fleet["term"])) == 1
    assert len(tokenizers_of(fleet["split"])) == 3
    for pid in tokenizers_of(fleet["split"]):
        environment = read_proc(pid, "environ").split("\0")
        assert "TOKENIZERS_PARALLELISM=false" in environment
        assert "OMP_NUM_THREADS=1" in environment


def test_c32_threads_are_in_the_log_of_the_scheduler(fleet):
    assert "torch computes with 1 of " in fleet["term"].said
    assert "torch computes" not in fleet["twice"].said  # --silent-output


def test_c31_neighbours_do_not_hear_each_other(fleet):
    here, there = fleet["term"], fleet["neighbour"]
    assert there.port == here.port + 1
    mine, other = complete(here), complete(there)
    assert mine != other
    for _ in range(3):
        assert complete(here) == mine
        assert complete(there) == other
    assert complete(fleet["split"]) == mine


@pytest.mark.parity
def test_c21_one_bos(fleet):
    server, folder = fleet["neighbour"], model_path(LLAMA)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    turns = tokenizer.apply_chat_template(
        QUESTION, add_generation_prompt=True, tokenize=False
    )
    chat = tokenizer(turns, add_special_tokens=False).input_ids
    assert chat.count(tokenizer.bos_token_id) == 1
    asked = {
        "/v1/chat/completions": ({"messages": QUESTION}, chat),
        "/v1/completions": (
            {"prompt": "The sky"},
            tokenizer("The sky").input_ids,
        ),
    }
    body = {"max_tokens": 16, "temperature": 0, "ignore_eos": True}
    for path, (wish, ids) in asked.items():
        status, answer = server.post(path, body | wish)
        assert status == 200, answer
        assert answer["usage"]["prompt_tokens"] == len(ids)
        [choice] = answer["choices"]
        found = reference(folder, ids, 16).ids
        text = tokenizer.decode(found, skip_special_tokens=True)
        said = (
            choice["text"] if "text" in choice else choice["message"]["content"]
        )
        assert said == text


def test_c21_a_model_without_a_chat_template(fleet):
    server = fleet["twice"]
    status, answer = server.post("/v1/chat/completions", {"messages": QUESTION})
    assert status == 400 and "/v1/completions" in answer["error"]["message"]
    body = {"prompt": "a", "max_tokens": 2}
    assert server.post("/v1/completions", body)[0] == 200


def test_c31_port_in_use_is_one_line_before_anything_starts(fleet, tmp_path):
    taken = fleet["term"].port
    start = time.monotonic()
    with Live(tmp_path, model_path(QWEN), port=taken) as late:
        code = late.wait_end(10)
        assert code == 1
        [line] = late.errors
        assert f"--port {taken}" in line and "in use" in line
        assert late.said.strip() == line
    assert time.monotonic() - start < 10
    assert complete(fleet["term"])


# How it ends


def test_sigterm_tells_clients_and_leaves_nothing(fleet):
    server = fleet["term"]
    with server.stream() as stream:
        server.signal(signal.SIGTERM)
        assert_ends_in_error(stream)
    assert server.wait_end(20) == 0
    assert server.err.read_text().count("\n") == 1, server.said  # the threads
    assert is_free(server.port)


def test_c31_the_port_is_free_at_once_and_503_until_ready(fleet, tmp_path):
    port = fleet["term"].port
    with Live(tmp_path, model_path(QWEN), port=port) as again:
        wait_until(lambda: not refuses(port), 20, "listening")
        for path in ("/health", "/v1/models", "/nowhere"):
            with again.open(path) as answer:
                assert answer.status == 503
                assert "loaded" in json.loads(answer.read())["error"]["message"]
        # Ctrl-C while it loads.
        os.killpg(again.process.pid, signal.SIGINT)
        assert again.wait_end(5) == 0
        assert again.errors == []
    assert complete(fleet["neighbour"])


def test_sigkill_of_the_parent_ends_its_children(fleet):
    server = fleet["neighbour"]
    with server.stream():
        server.signal(signal.SIGKILL)
        wait_until(lambda: server.pids() == [], 2, "the end of the children")
    assert server.wait_end(1) == -signal.SIGKILL
    assert is_free(server.port)


@pytest.mark.parametrize("name", ["scheduler", "tokenizer"])
def test_c23_a_killed_child_ends_the_server(fleet, name):
    server = fleet[name]
    victim = scheduler_of(server) if name == "scheduler" else None
    with server.stream() as stream:
        os.kill(victim or tokenizers_of(server)[0], signal.SIGKILL)
        assert_ends_in_error(stream)
    assert server.wait_end(20) == 1
    [line] = server.errors
    assert name in line and "SIGKILL" in line
    assert is_free(server.port)


def test_sigterm_to_all_processes_is_no_failure(fleet):
    """As systemd does it: children may die before the parent knows why."""
    server = fleet["split"]
    with server.stream() as stream:
        os.killpg(server.process.pid, signal.SIGTERM)
        assert_ends_in_error(stream)
    assert server.wait_end(20) == 0
    assert "Traceback" not in server.said and server.errors == []


def test_children_never_hear_ctrl_c(fleet):
    for pid in fleet["twice"].children():
        blocked = re.search(r"SigBlk:\s*(\w+)", read_proc(pid, "status"))[1]
        assert int(blocked, 16) & 1 << signal.SIGINT - 1


def test_a_second_ctrl_c_does_not_wait(fleet):
    server = fleet["twice"]
    os.kill(scheduler_of(server), signal.SIGSTOP)  # it cannot end by itself
    os.killpg(server.process.pid, signal.SIGINT)
    time.sleep(1)
    assert server.process.poll() is None
    assert len(server.children()) == 2
    os.killpg(server.process.pid, signal.SIGINT)
    assert server.wait_end(2) == 130


# What keeps it from starting


def assert_fails(server: Live, *words: str, seconds: float = 60) -> None:
    assert server.wait_end(seconds) == 1
    [line] = server.errors
    assert all(word in line for word in words), line
    assert "Traceback" not in server.said


@pytest.mark.parametrize("path", ["/no/such/model", "no-such-model"])
def test_c31_bad_model_path(tmp_path, path):
    offline = {"HF_HUB_OFFLINE": "1"}
    with Live(tmp_path, path, env=offline) as server:
        assert_fails(server, path, "not a folder", seconds=15)


def test_c31_a_folder_that_is_no_model(tmp_path):
    with Live(tmp_path / "log", tmp_path) as server:
        assert_fails(server, str(tmp_path), "config.json", seconds=10)


def test_c31_children_that_fail_while_loading(tmp_path):
    """Several servers at once, each of which cannot load something."""
    weights = copy_of(QWEN, tmp_path / "a", "*.safetensors")
    tokens = copy_of(QWEN, tmp_path / "b", "tokenizer.json")
    model = model_path(QWEN)
    pool = ("--num-pages", "1000000000000")
    with (
        Live(tmp_path / "1", weights) as no_weights,
        Live(tmp_path / "2", tokens) as no_tokenizer,
        Live(tmp_path / "3", model, *pool) as no_memory,
        Live(tmp_path / "4", model) as killed,
        Live(tmp_path / "5", model) as orphaned,
    ):
        wait_until(lambda: len(orphaned.children()) == 2, 30, "two children")
        orphaned.signal(signal.SIGKILL)
        wait_until(lambda: len(killed.children()) == 2, 30, "two children")
        os.kill(killed.children()[0], signal.SIGKILL)
        wait_until(lambda: orphaned.pids() == [], 10, "the end of the orphans")
        assert orphaned.socket_dirs() == []
        assert_fails(killed, "scheduler: killed by SIGKILL")
        assert_fails(no_tokenizer, "tokenizer", "tokenizer.json")
        assert_fails(no_weights, "scheduler", "safetensors")
        assert_fails(no_memory, "scheduler")


@pytest.mark.until("ch16", "then a model can be cut")
def test_c31_two_ranks_are_too_many(tmp_path):
    with Live(tmp_path, model_path(QWEN), "--tp", "2") as server:
        assert_fails(server, "scheduler-", "ranks")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_c32_a_gpu_that_is_not_there(tmp_path):
    with Live(tmp_path, model_path(QWEN), "--device", "cuda") as server:
        assert_fails(server, "scheduler", "cuda", "--device cpu")


def test_leftovers_of_dead_runs_go_and_others_stay(tmp_path):
    # Not tmp_path: it is too long for a socket.
    home = Path(tempfile.mkdtemp(prefix="s"))
    dead = home / f"minisgl-{2**22 + 1}-0123abcd"  # beyond any pid
    ours = home / f"minisgl-{os.getpid()}-0123abcd"
    busy = home / f"minisgl-{2**22 + 2}-0123abcd"
    try:
        for folder in (dead, ours, busy):
            folder.mkdir()
        (dead / "backend").touch()
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(busy / "backend"))
            listener.listen()
            env = {"TMPDIR": str(home)}
            with Live(tmp_path, model_path(QWEN), env=env) as server:
                wait_until(lambda: server.children(), 20, "a child")
                left = [f.exists() for f in (dead, ours, busy)]
        assert left == [False, True, True]
    finally:
        shutil.rmtree(home, ignore_errors=True)
