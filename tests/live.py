"""Real servers, started as a user starts them: `python -m minisgl`.

A `Live` is the leader of a session of its own, so that everything it ever started can
be found, however its parents ended.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import minisgl

ROOT = Path(minisgl.__file__).resolve().parents[1]
# Small enough that several fit on any machine.
SMALL = ["--device", "cpu", "--dtype", "float32", "--num-pages", "4096"]
# Of a request whose answer has as many tokens as it asks for, always the same ones.
GREEDY = {"temperature": 0, "ignore_eos": True}


def free_ports(count: int = 1) -> list[int]:
    """Neighbouring ports of this machine that nobody has."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            first = probe.getsockname()[1]
        ports = list(range(first, first + count))
        if ports[-1] < 2**16 and all(is_free(port) for port in ports):
            return ports


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
            probe.listen()
        except OSError:
            return False
    return True


def wait_until(true: Any, seconds: float, what: str = "it") -> float:
    """Wait for `true()`; returns the seconds that took."""
    start = time.monotonic()
    while not true():
        spent = time.monotonic() - start
        assert spent < seconds, f"{what} did not happen in {seconds} s"
        time.sleep(0.02)
    return time.monotonic() - start


class Live:
    """A server as a process; use it as a context manager.

    folder: for what it prints.
    """

    def __init__(
        self,
        folder: Path,
        model: str | Path,
        *options: str,
        port: int = 0,
        module: str = "minisgl",
        env: dict[str, str] | None = None,
        stdin: int = subprocess.DEVNULL,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.out, self.err = folder / "out.txt", folder / "err.txt"
        command = [sys.executable, "-m", module, "--model", str(model)]
        command += [*SMALL, "--port", str(port), *options]
        environment = os.environ | {"OMP_NUM_THREADS": "1"} | (env or {})
        environment.pop("LOG_LEVEL", None)
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=environment,
                stdin=stdin,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        self.port = port

    def __enter__(self) -> "Live":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill whatever is left of it, and remove what nobody else can then."""
        for pid in self.pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        for folder in self.socket_dirs():
            shutil.rmtree(folder, ignore_errors=True)

    @property
    def said(self) -> str:
        """What it has printed so far, both streams."""
        return self.out.read_text() + self.err.read_text()

    @property
    def errors(self) -> list[str]:
        """The lines in which it said why it ended."""
        lines = self.err.read_text().splitlines()
        return [line for line in lines if line.startswith("error: ")]

    def wait_ready(self, seconds: float = 120.0) -> "Live":
        def ready() -> bool:
            assert self.process.poll() is None, self.said
            return "\ncurl " in self.out.read_text()

        wait_until(ready, seconds, "being ready")
        found = re.search(r"http://127\.0\.0\.1:(\d+)", self.out.read_text())
        assert found is not None
        self.port = int(found[1])
        return self

    def wait_end(self, seconds: float) -> int:
        """Its exit code, once it has ended and nothing of it is left."""
        code = self.process.wait(seconds)
        # Python's own resource tracker sees a moment later that it is alone.
        wait_until(lambda: not self.pids(), 1, "the end of all processes")
        assert self.socket_dirs() == []
        return code

    def pids(self) -> list[int]:
        """All living processes of its session."""
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            state, session = fields[0], int(fields[3])
            if session == self.process.pid and state not in "ZX":
                found.append(int(stat.parent.name))
        return sorted(found)

    def children(self) -> list[int]:
        """The processes that it has started, the oldest first."""
        marked = []
        for pid in self.pids():
            command = read_proc(pid, "cmdline")
            if "multiprocessing-fork" in command:
                marked.append(pid)
        return marked

    def socket_dirs(self) -> list[Path]:
        """The folders of its sockets."""
        folders = Path(os.environ.get("TMPDIR", "/tmp"))
        return list(folders.glob(f"minisgl-{self.process.pid}-*"))

    def post(self, path: str, body: Any, **headers: str) -> tuple[int, Any]:
        """Status and JSON of an answer."""
        with self.open(path, body, **headers) as answer:
            return answer.status, json.loads(answer.read())

    def open(
        self, path: str, body: Any = None, timeout: float = 60, **headers: str
    ) -> Any:
        """The answer; an error is one too."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            None if body is None else json.dumps(body).encode(),
            {"content-type": "application/json", **headers},
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            return opener.open(request, timeout=timeout)
        except urllib.error.HTTPError as error:
            return error

    def stream(self, max_tokens: int = 3000) -> Any:
        """A long answer of which the first piece has come."""
        body = {
            "model": json.loads(self.open("/v1/models").read())["data"][0][
                "id"
            ],
            "prompt": "Once",
            "max_tokens": max_tokens,
            "ignore_eos": True,
            "stream": True,
        }
        answer = self.open("/v1/completions", body)
        assert answer.status == 200, answer.read()
        assert answer.readline().startswith(b"data: ")
        return answer

    def signal(self, number: int) -> None:
        self.process.send_signal(number)


def read_proc(pid: int, name: str) -> str:
    try:
        return (
            Path(f"/proc/{pid}/{name}").read_bytes().decode("utf-8", "replace")
        )
    except OSError:
        return ""


def has_torch(pid: int) -> bool:
    """Whether a process has loaded it."""
    return "libtorch" in read_proc(pid, "maps")


def events(answer: Any) -> Iterator[Any]:
    """The JSON of a stream's events; [DONE] as a str."""
    for line in answer:
        if line.startswith(b"data: "):
            text = line.removeprefix(b"data: ").decode()
            yield text.strip() if text.startswith("[") else json.loads(text)
