"""The command line, the number of threads, and what a process has to load."""

import json
import os
import re
import shlex
import socket
import subprocess
import sys
from dataclasses import fields

import pytest
import torch

from minisgl.distributed import DistributedInfo
from minisgl.server.args import ServerArgs, parse_args, version
from minisgl.server.child import Child
from minisgl.server.listener import base_url, curl_command, listen
from minisgl.server.options import GROUPS
from minisgl.server.threads import count_cores, environment, limit_threads
from minisgl.utils import resolve_dtype
from tests.fakes.failing import fail
from tests.live import ROOT

MODEL = ["--model", "m"]


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch):
    for name in ("LOG_LEVEL", "MINISGL_API_KEY"):
        monkeypatch.delenv(name, raising=False)


def read(*words: str) -> ServerArgs:
    args, run_shell = parse_args([*MODEL, *words])
    assert not run_shell
    return args


def refused(capsys, *words: str) -> str:
    """The one line for a command line that is wrong."""
    with pytest.raises(SystemExit) as leaving:
        parse_args([*words])
    assert leaving.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    [line] = printed.err.splitlines()
    assert line.startswith("error: ") and "--help" in line
    return line


# The command line


def test_defaults_are_those_of_the_settings():
    args = read()
    plain = ServerArgs("m", DistributedInfo(0, 1), "auto")
    for field in fields(ServerArgs):
        if field.name != "_unique_suffix":
            assert getattr(args, field.name) == getattr(plain, field.name)


@pytest.mark.parametrize(
    ("words", "setting", "value"),
    [
        ("--dtype bfloat16", "dtype", "bfloat16"),
        ("--device cpu", "device", "cpu"),
        ("--device cuda:1", "device", "cuda:1"),
        ("--tp 3", "tp_info", DistributedInfo(0, 3)),
        ("--tensor-parallel-size 2", "tp_info", DistributedInfo(0, 2)),
        ("--attention-backend torch", "attention_backend", "torch"),
        ("--attn torch", "attention_backend", "torch"),
        ("--max-seq-len-override 99", "max_seq_len_override", 99),
        ("--dummy-weight", "use_dummy_weight", True),
        ("--max-running-requests 7", "max_running_req", 7),
        ("--max-prefill-length 64", "max_extend_tokens", 64),
        ("--prefills-in-a-row 0", "prefills_in_a_row", 0),
        ("--no-overlap", "overlap", False),
        ("--memory-ratio 0.5", "memory_ratio", 0.5),
        ("--num-pages 12", "num_page_override", 12),
        ("--page-size 16", "page_size", 16),
        ("--cache-type naive", "cache_type", "naive"),
        ("--host ::1", "server_host", "::1"),
        ("--port 0", "server_port", 0),
        ("--num-tokenizer 2", "num_tokenizer", 2),
        ("--served-model-name a/b", "served_model_name", "a/b"),
        ("--api-key k3y", "api_key", "k3y"),
        ("--root-path /llm/", "root_path", "/llm"),
        ("--cors-origin a --cors-origin b", "cors_origins", ("a", "b")),
        ("--threads 5", "num_threads", 5),
        ("--shell-max-tokens 9", "shell_max_tokens", 9),
        ("--shell-temperature 0", "shell_temperature", 0.0),
        ("--log-level WARNING", "log_level", "warning"),
        ("--silent-output", "silent_output", True),
    ],
)
def test_every_option_arrives(words, setting, value):
    assert getattr(read(*words.split()), setting) == value


def test_every_setting_has_an_option():
    taken = {
        option.setting for options in GROUPS.values() for option in options
    }
    settings = {field.name for field in fields(ServerArgs)}
    # Another name on the command line, or nothing for users.
    renamed = {"tp_info": "tp_size", "overlap": "no_overlap"}
    internal = {"offline_mode", "_unique_suffix"}
    # Of ch16 and ch18: for programs that start an engine.
    internal |= {"distributed_timeout", "use_pynccl", "cuda_graph_bs"}
    wanted = {renamed.get(name, name) for name in settings - internal}
    assert taken == wanted | {"shell", "version"}


def test_help_is_grouped_and_complete():
    command = [sys.executable, "-m", "minisgl", "--help"]
    for columns in ("80", "120"):
        env = os.environ | {"COLUMNS": columns, "TERM": "dumb"}
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=env,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0 and done.stderr == ""
        places = [done.stdout.index(f"─ {group} ─") for group in GROUPS]
        assert places == sorted(places)
        for options in GROUPS.values():
            for option in options:
                for name in option.names.split():
                    assert re.search(rf"{name}\b", done.stdout), name
        assert "…" not in done.stdout


def test_model_is_also_called_model_path():
    args, _ = parse_args(["--model-path", "x/y/"])
    assert args.model_path == "x/y/"
    assert args.model_name == "x/y"
    assert read("--served-model-name", "z").model_name == "z"


def test_key_and_level_also_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("MINISGL_API_KEY", "secret")
    monkeypatch.setenv("LOG_LEVEL", "ERROR")
    args = read()
    assert (args.api_key, args.log_level) == ("secret", "error")
    assert "secret" not in repr(args)
    assert read("--api-key", "other").api_key == "other"


@pytest.mark.parametrize(
    ("words", "option"),
    [
        ("--page-size 0", "--page-size"),
        ("--page-size 1.5", "--page-size"),
        ("--memory-ratio 1.5", "--memory-ratio"),
        ("--memory-ratio nan", "--memory-ratio"),
        ("--port 65536", "--port"),
        ("--port -1", "--port"),
        ("--dtype int8", "--dtype"),
        ("--device tpu", "--device"),
        ("--device cuda:x", "--device"),
        ("--device auto:1", "--device"),
        ("--device cpu:3", "--device"),
        ("--attention-backend none", "--attention-backend"),
        ("--cache-type none", "--cache-type"),
        ("--tp 0", "--tp"),
        ("--threads 0", "--threads"),
        ("--num-pages 0", "--num-pages"),
        ("--max-seq-len-override 0", "--max-seq-len-override"),
        ("--max-running-requests 0", "--max-running-requests"),
        ("--max-running-requests 0 --shell", "--max-running-requests"),
        ("--max-prefill-length 0", "--max-prefill-length"),
        ("--prefills-in-a-row -1", "--prefills-in-a-row"),
        ("--num-tokenizer -1", "--num-tokenizer"),
        ("--log-level loud", "--log-level"),
        ("--shell-temperature -1", "--shell-temperature"),
        ("--shell-temperature nan", "--shell-temperature"),
        ("--shell-max-tokens 0", "--shell-max-tokens"),
        ("--root-path llm", "--root-path"),
        ("--api-key=", "--api-key"),
        ("--api-key kéy", "--api-key"),
        ("--max-running-requests", "--max-running-requests"),
        ("--no-such-option", "--no-such-option"),
    ],
)
def test_a_wrong_option_is_one_line_that_names_it(capsys, words, option):
    assert option in refused(capsys, *MODEL, *words.split())


def test_what_is_missing_or_too_much(capsys):
    assert "--model" in refused(capsys)
    assert "spare" in refused(capsys, *MODEL, "spare")


def test_the_names_of_dtypes_are_those_the_engine_knows(capsys):
    with pytest.raises(ValueError, match="use one of") as error:
        resolve_dtype("int8", None)
    known = str(error.value).rpartition("one of ")[2]
    assert refused(capsys, *MODEL, "--dtype", "int8").count(known) == 1


@pytest.mark.until("ch17", "then there are such backends")
def test_c32_a_backend_for_gpus_only_is_not_here(capsys):
    line = refused(capsys, *MODEL, "--attention-backend", "fi")
    assert "'fi'" in line and "torch" in line


def test_version_needs_no_model(capsys):
    with pytest.raises(SystemExit) as leaving:
        parse_args(["--version"])
    assert not leaving.value.code
    assert capsys.readouterr().out == f"minisgl {version()}\n"
    assert re.match(r"\d+\.\d+", version())


@pytest.mark.parametrize("by_option", [True, False])
def test_a_shell_is_for_one(by_option):
    words = ["--shell"] if by_option else []
    args, run_shell = parse_args([*MODEL, *words], run_shell=not by_option)
    assert run_shell and args.silent_output and args.max_running_req == 4


# Addresses


@pytest.mark.parametrize("count", [0, 2])
def test_every_address_has_one_creator(count):
    args = read("--num-tokenizer", str(count))
    addresses = [args.zmq_frontend_addr, args.zmq_backend_addr]
    addresses += {args.zmq_tokenizer_addr, args.zmq_detokenizer_addr}
    assert len(set(addresses)) == (3 if count == 0 else 4)
    assert all(str(args.socket_dir) in address for address in addresses)
    # Who shares one address takes from it; else those who put create it.
    assert args.share_tokenizer == args.tokenizer_create_addr == (count == 0)
    assert args.backend_create_detokenizer_link == (count > 0)
    assert args.frontend_create_tokenizer_link == (count > 0)


def test_c31_two_servers_share_no_address():
    assert read().socket_dir != read().socket_dir


# The socket


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "0.0.0.0", "::1", "::"]
)
def test_listen_and_reach(host):
    if ":" in host and not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    try:
        listener = listen(host, 0)
    except OSError as error:
        if ":" in host:
            pytest.skip(f"no IPv6 here: {error}")
        raise
    with listener:
        url = base_url(listener)
        port = listener.getsockname()[1]
        assert url.endswith(f":{port}")
        at = re.fullmatch(r"http://\[?(.*?)\]?:\d+", url)[1]
        socket.create_connection((at, port), 5).close()
        with pytest.raises(OSError, match=rf"--port {port}: .*in use"):
            listen(host, port)


def test_c31_a_port_that_is_only_bound_is_taken_too():
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        # It has not accepted anybody; still no second server gets it.
        with pytest.raises(OSError, match="in use"):
            listen("127.0.0.1", port)
    listen("127.0.0.1", port).close()


@pytest.mark.parametrize("host", ["no-such-host.invalid", "192.0.2.1"])
def test_a_host_that_is_not_ours(host):
    with pytest.raises(OSError, match=re.escape(f"--host {host}")):
        listen(host, 0)


def test_curl_command_has_name_and_key():
    args = read("--served-model-name", "it's mine", "--api-key", "k3y")
    words = shlex.split(curl_command(args, "http://h:1"))
    assert words[:2] == ["curl", "http://h:1/v1/chat/completions"]
    assert json.loads(words[words.index("-d") + 1])["model"] == "it's mine"
    assert "authorization: Bearer $MINISGL_API_KEY" in words
    assert "k3y" not in " ".join(words)
    assert "authorization" not in curl_command(read(), "http://h:1")


# Threads


@pytest.fixture
def torch_threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("size", [1, 2, 3, 1000])
def test_c32_ranks_share_the_cores(monkeypatch, torch_threads, size):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    torch.set_num_threads(64)
    limit_threads(read("--tp", str(size)))
    assert torch.get_num_threads() == max(1, count_cores() // size)


def test_c32_what_is_set_is_respected(monkeypatch, torch_threads):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    torch.set_num_threads(3)  # as torch does by itself
    limit_threads(read("--tp", "2"))
    assert torch.get_num_threads() == 3
    limit_threads(read("--threads", "5"))
    assert torch.get_num_threads() == 5


def test_environment_is_put_back(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv("SOME_NEW_NAME", raising=False)
    with environment({"OMP_NUM_THREADS": "1", "SOME_NEW_NAME": "x"}):
        assert os.environ["OMP_NUM_THREADS"] == "1"
        assert os.environ["SOME_NEW_NAME"] == "x"
    assert os.environ["OMP_NUM_THREADS"] == "7"
    assert "SOME_NEW_NAME" not in os.environ


# What is loaded


def loaded(code: str) -> set[str]:
    """The modules of a fresh process that runs this code."""
    code += "\nimport sys; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_settings_are_read_without_torch():
    modules = loaded(
        "from minisgl.server.args import parse_args\n"
        "parse_args(['--model', 'm', '--cache-type', 'radix'])"
    )
    assert not modules & {
        "torch",
        "transformers",
        "numpy",
        "fastapi",
        "uvicorn",
    }


def test_the_api_process_does_without_torch():
    modules = loaded(
        "import minisgl.server.lifecycle, minisgl.server.api_server\n"
        "import minisgl.server.gate, minisgl.server.shell, minisgl.server.folders"
    )
    assert {"fastapi", "uvicorn", "zmq"} <= modules
    assert not modules & {"torch", "transformers"}


def test_c32_no_package_for_gpus_is_loaded():
    modules = loaded("import minisgl.scheduler.server, minisgl.llm")
    assert "torch" in modules
    assert not modules & {"flashinfer", "flash_attn", "triton", "sgl_kernel"}


def test_lazy_packages_offer_what_they_list():
    import minisgl.attention
    import minisgl.kvcache

    for package in (
        minisgl.attention,
        minisgl.engine,
        minisgl.kvcache,
        minisgl.scheduler,
    ):
        for name in package.__all__:
            assert getattr(package, name) is not None
        with pytest.raises(AttributeError, match="no_such_name"):
            package.no_such_name  # noqa: B018


# Children


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("expected", "worker: two lines"),
        ("late", "worker: ValueError: two lines"),
        ("mistake", r"worker: KeyError: 'two\nlines'"),
        ("exit", "it says why it leaves"),
    ],
)
def test_a_child_says_why_it_fails(tmp_path, kind, reason, capfd):
    child = Child.start("worker", fail, {"kind": kind}, tmp_path)
    child.process.join(60)
    assert child.process.exitcode == 1
    assert child.how_it_ended() == reason
    assert child.ready == (kind == "late")
    # A traceback is for mistakes of the program, as all are once it works.
    traced = "Traceback" in capfd.readouterr().err
    assert traced == (kind in ("mistake", "late"))
