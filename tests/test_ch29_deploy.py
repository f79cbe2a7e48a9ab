"""Three replicas on Ray Serve: answers, hits, deaths, and a clean end."""

import asyncio
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random

import pytest

from minisgl.deploy.policy import PrefixPolicy, RandomPolicy
from minisgl.utils import load_tokenizer
from tests.deployed import (
    Deployed,
    converse,
    kill,
    parent,
    pids_of,
    routed,
)
from tests.live import GREEDY, ROOT, events, free_ports, is_free, wait_until
from tests.parity import model_under_test, prompts, reference

FOLDER = model_under_test("qwen3-tiny")
COUNT = 3


@pytest.fixture(scope="module")
def deployed(tmp_path_factory):
    """Started once; the last test of this file ends it."""
    policy = PrefixPolicy()  # it will run in other processes
    policy.join("a", 9)
    assert policy.choose([1, 2], {"a": 0}) == "a"
    place = tmp_path_factory.mktemp("deployed")
    options = ["--replicas", str(COUNT), "--served-model-name", "tiny"]
    with Deployed(place, FOLDER, *options) as found:
        yield found.wait_ready()


def complete(deployed, **body) -> dict:
    status, made = deployed.post(
        "/v1/completions", {"model": "tiny"} | body | GREEDY
    )
    assert status == 200, made
    return made


@pytest.mark.parity
def test_answers_through_the_router_are_those_of_transformers(deployed):
    tokenizer, asked = load_tokenizer(str(FOLDER)), prompts(FOLDER)
    text_of = lambda ids: tokenizer.decode(ids, skip_special_tokens=True)  # noqa: E731

    def ask(ids: list[int]) -> tuple[str, str]:
        made = complete(deployed, prompt=ids, max_tokens=24)
        body = {"model": "tiny", "prompt": ids, "max_tokens": 24}
        with deployed.open(
            "/v1/completions", body | GREEDY | {"stream": True}
        ) as answer:
            replica = answer.headers["x-minisgl-replica"]
            *pieces, last = events(answer)
        assert last == "[DONE]"
        text = "".join(p["choices"][0]["text"] for p in pieces)
        assert text == made["choices"][0]["text"]
        return text, replica

    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(ask, [*asked, *asked]))
    for ids, (text, _) in zip([*asked, *asked], found, strict=True):
        assert text == text_of(reference(FOLDER, ids, 24).ids)
    assert {replica for _, replica in found} <= {*deployed.open_ones()}
    assert len({replica for _, replica in found}) > 1


def test_everything_else_is_what_one_server_says(deployed):
    with deployed.open("/v1/models") as answer:
        [card] = json.loads(answer.read())["data"]
    assert card["id"] == "tiny"
    status, made = deployed.post("/v1/completions", {"prompt": "a", "top_p": 7})
    assert (status, made["error"]["param"]) == (400, "top_p")
    status, made = deployed.post("/nothing", {})
    assert (status, made["error"]["message"]) == (
        404,
        "there is no /nothing here",
    )


def test_no_part_of_it_stands_behind_other_programs(deployed):
    nice = set()
    for pid in deployed.pids():
        with suppress(ProcessLookupError):
            nice.add(os.getpriority(os.PRIO_PROCESS, pid))
    assert nice == {os.getpriority(os.PRIO_PROCESS, 0)}


def test_prefix_aware_routing_hits_more_often_than_random(deployed):
    async def rate(url: str, seed: int) -> float:
        prompt, cached = await converse(url, "tiny", 60, seed=seed)
        return cached / prompt

    url = f"http://127.0.0.1:{deployed.port}"
    aware = asyncio.run(rate(url, 1))
    with routed(deployed.open_ones(), RandomPolicy(Random(0))) as url:
        chance = asyncio.run(rate(url, 2))
    assert aware > 1.5 * chance > 0


def test_a_client_that_goes_ends_its_request(deployed):
    def running() -> int:
        urls = deployed.open_ones().values()
        return sum(deployed.numbers(url)["running"] for url in urls)

    with deployed.stream():
        wait_until(lambda: running() == 1, 10, "the request")
    wait_until(lambda: running() == 0, 10, "its end")


class Outcome:
    """What a client of a long stream has seen."""

    def __init__(self) -> None:
        self.replica, self.pieces, self.error, self.ended = "", 0, "", ""
        self.done = False

    def read(self, deployed, tokens: int) -> "Outcome":
        body = {"model": "tiny", "prompt": "Once", "max_tokens": tokens}
        body |= GREEDY | {"stream": True}
        with deployed.open("/v1/completions", body) as answer:
            assert answer.status == 200, answer.read()
            self.replica = answer.headers["x-minisgl-replica"]
            for event in events(answer):
                if event == "[DONE]":
                    self.done = True
                elif "error" in event:
                    self.error = event["error"]["message"]
                else:
                    self.pieces += 1
                    [choice] = event["choices"]
                    self.ended = choice["finish_reason"] or self.ended
        return self


@pytest.mark.parametrize("victim", ["server", "watcher"])
def test_a_replica_is_killed_under_load(deployed, victim):
    """Its server, or what Ray runs beside it; clients notice as little as can be."""
    deployed.wait_all_open(COUNT)
    before = deployed.open_ones()
    with ThreadPoolExecutor(24) as pool:
        begun = [pool.submit(Outcome().read, deployed, 250) for _ in range(9)]
        busy = lambda: {  # noqa: E731
            name: r["in_flight"] for name, r in deployed.replicas().items()
        }
        wait_until(lambda: sum(busy().values()) == 9, 10, "the load")
        time.sleep(0.3)  # for their first tokens
        name = max(busy(), key=lambda name: busy()[name])
        server = deployed.process_of(before[name])
        kill(server if victim == "server" else parent(server))
        # None of these has begun.
        later = [
            pool.submit(complete, deployed, prompt=[i, 5, 6], max_tokens=4)
            for i in range(12)
        ]
        outcomes = [one.result(60) for one in begun]
        for one in later:
            assert one.result(60)["usage"]["completion_tokens"] == 4
    for one in outcomes:
        assert one.done
        assert bool(one.error) != (one.ended == "length")
        assert one.replica == name or not one.error
    assert any(one.error for one in outcomes)
    wait_until(lambda: not Path(f"/proc/{server}").exists(), 10, "its end")
    wait_until(
        lambda: len({*deployed.open_ones()} - {name}) == COUNT,
        60,
        "a replica in its place",
    )


def test_a_stop_waits_for_streams_and_leaves_nothing(deployed):
    deployed.wait_all_open(COUNT)
    with ThreadPoolExecutor(4) as pool:
        begun = [pool.submit(Outcome().read, deployed, 200) for _ in range(3)]
        wait_until(
            lambda: (
                sum(r["in_flight"] for r in deployed.replicas().values()) == 3
            ),
            10,
            "the streams",
        )
        time.sleep(0.3)
        deployed.signal(signal.SIGTERM)
        wait_until(lambda: "stopping after" in deployed.said, 10, "the stop")
        status, made = deployed.post("/v1/completions", {"prompt": "late"})
        assert (status, made["error"]["type"]) == (503, "server_error")
        for one in [one.result(60) for one in begun]:
            assert (one.error, one.ended, one.done) == ("", "length", True)
    assert deployed.wait_end(60) == 0
    assert deployed.errors == []
    assert is_free(deployed.port)


def end_of(*words: str, env: dict[str, str] | None = None) -> tuple[int, str]:
    """Exit code and stderr of a command that cannot work."""
    done = subprocess.run(
        [sys.executable, "-m", "minisgl.deploy", *words],
        cwd=ROOT,
        env=os.environ | (env or {}),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == ""
    return done.returncode, done.stderr


class TestTheDoor:
    """What is wrong is one line, before Ray is started."""

    @pytest.mark.parametrize(
        ("words", "says"),
        [
            (["--model", "no/such"], "'no/such' is not a folder"),
            ([], "Missing option '--model'"),
            (["--replicas", "0"], "replicas must be at least 1"),
            (["--replicas", "two"], "Input should be a valid integer"),
            (["--policy", "best"], "policy 'best' is not supported"),
            (["--dtype", "float13"], "'float13' is not one of"),
            (["--no-such-option"], "No such option"),
            (["--shell"], "--shell is for python -m minisgl"),
            (["--address", "127.0.0.1:1"], "no Ray cluster at 127.0.0.1:1"),
        ],
    )
    def test_it_is_said_at_the_door(self, words, says):
        model = (
            [] if "--model" in words or not words else ["--model", str(FOLDER)]
        )
        code, said = end_of(*model, *words)
        assert code in (1, 2)
        assert says in said
        assert said.startswith("error: ")
        assert len(said.splitlines()) == 1

    def test_a_port_that_is_taken(self):
        [port] = free_ports()
        with socket.create_server(("127.0.0.1", port)):
            code, said = end_of("--model", str(FOLDER), "--port", str(port))
        assert code == 1
        assert f"--port {port}: this port is in use" in said

    def test_without_ray(self, tmp_path):
        (tmp_path / "ray.py").write_text(
            "raise ModuleNotFoundError(\"No module named 'ray'\", name='ray')"
        )
        path = os.pathsep.join(
            [str(tmp_path), os.environ.get("PYTHONPATH", "")]
        )
        code, said = end_of("--model", str(FOLDER), env={"PYTHONPATH": path})
        assert code == 1
        assert said.startswith(
            "error: ray is missing: pip install 'handwritten"
        )
        assert "minisgl[deploy]'" in said


@pytest.mark.slow
class TestOtherEnds:
    """Each takes a Ray of its own."""

    def test_ctrl_c_while_it_loads(self, tmp_path):
        with Deployed(tmp_path, FOLDER, "--replicas", "1") as found:
            wait_until(lambda: "loading 1 x" in found.said, 60, "the load")
            os.killpg(found.process.pid, signal.SIGINT)
            assert found.wait_end(60) == 0
            assert found.errors == []

    def test_the_command_is_killed(self, tmp_path):
        with Deployed(tmp_path, FOLDER, "--replicas", "1") as found:
            found.wait_ready()
            [url] = found.open_ones().values()
            server = found.process_of(url)
            found.signal(signal.SIGKILL)
            wait_until(
                lambda: not Path(f"/proc/{server}").exists(), 20, "its end"
            )
            wait_until(lambda: not found.pids(), 60, "the end of Ray")

    def test_a_model_that_cannot_be_loaded(self, tmp_path):
        folder = tmp_path / "no weights"
        shutil.copytree(
            FOLDER, folder, ignore=shutil.ignore_patterns("*.safetensors")
        )
        with Deployed(tmp_path / "out", folder, "--replicas", "1") as found:
            assert found.wait_end(90) == 1
            [line] = found.errors
            assert "no weights" in line
            assert "safetensors" in line

    def test_a_cluster_of_two_nodes(self, tmp_path, monkeypatch):
        """Each has room for one replica; the cluster outlives the deployment."""
        mark, [port] = secrets.token_hex(32), free_ports()
        place = f"127.0.0.1:{port}"
        monkeypatch.setenv("RAY_AUTH_MODE", "token")
        monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        # Two nodes of one machine, at its loopback address.
        monkeypatch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "1")
        options = ["--replicas", "2", "--address", place, "--dtype", "float32"]
        out = tmp_path / "out"
        with (
            ray_nodes(mark, tmp_path, port) as nodes,
            Deployed(out, FOLDER, *options, mark=mark) as found,
        ):
            found.wait_ready()
            urls = {*found.open_ones().values()}
            assert len(urls) == 2
            complete(found, model=str(FOLDER), prompt="Hi", max_tokens=2)
            found.signal(signal.SIGTERM)
            assert found.process.wait(60) == 0, found.said
            assert found.errors == []
            assert all(is_free(int(u.rpartition(":")[2])) for u in urls)
            assert [node.poll() for node in nodes] == [None, None]


@contextmanager
def ray_nodes(mark: str, folder: Path, port: int):
    """A cluster of two nodes here, with a CPU each."""
    command = [str(Path(sys.executable).parent / "ray"), "start", "--block"]
    command += ["--num-cpus=1", "--object-store-memory=80000000"]
    command += ["--node-ip-address=127.0.0.1"]
    tmp = tempfile.mkdtemp(prefix="d29-", dir="/tmp")
    head = ["--head", f"--port={port}", f"--temp-dir={tmp}"]
    env = os.environ | {"RAY_AUTH_TOKEN": mark, "RAY_worker_niceness": "0"}
    nodes, log = [], folder / "nodes.txt"
    try:
        for words in (head, [f"--address=127.0.0.1:{port}"]):
            with log.open("ab") as out:
                node = subprocess.Popen(
                    [*command, *words], env=env, stdout=out, stderr=out
                )
            nodes.append(node)
            wait_until(
                lambda: log.read_text().count("runtime started") == len(nodes),
                60,
                "the start of a node",
            )
        yield nodes
    finally:
        for pid in pids_of(mark):
            kill(pid)
        for node in nodes:
            node.wait()
        shutil.rmtree(tmp, ignore_errors=True)
