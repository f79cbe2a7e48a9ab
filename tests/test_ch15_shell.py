"""The chat in the terminal, at a pseudo terminal and behind a pipe."""

import fcntl
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from contextlib import suppress

from tests.live import ROOT, SMALL, Live, has_torch, wait_until
from tools.models import model_path

MODEL = "qwen3-tiny"
COMMAND = [sys.executable, "-m", "minisgl.shell", "--model"]
COMMAND += [str(model_path(MODEL)), *SMALL]
# Greedy, so that its answers are always the same.
SHORT = ["--shell-max-tokens", "60", "--shell-temperature", "0"]
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "TERM": "xterm"}
# It would ask the terminal where the cursor is, and nobody answers.
ENVIRONMENT["PROMPT_TOOLKIT_NO_CPR"] = "1"
END = r"\[(\d+) tokens, [\d.]+ a second, after a chat of (\d+), (\d+) of them cached\]"


class Terminal:
    """A shell at a pseudo terminal: type keys, wait for what is shown."""

    def __init__(self, *options):
        self.master, slave = pty.openpty()
        self.process = subprocess.Popen(
            [*COMMAND, *options],
            cwd=ROOT,
            env=ENVIRONMENT,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(slave)
        self.shown = ""

    def type(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def wait_for(self, pattern: str, seconds: float = 60) -> re.Match:
        """The next place that matches; what stands before it is done with."""
        until = time.monotonic() + seconds
        while (found := re.search(pattern, self.shown)) is None:
            left = until - time.monotonic()
            assert left > 0, f"no {pattern!r} in {self.shown!r}"
            if select.select([self.master], [], [], left)[0]:
                self.shown += os.read(self.master, 65536).decode(
                    "utf-8", "replace"
                )
        self.shown = self.shown[found.end() :]
        return found

    def ask(self, text: str) -> tuple[int, ...]:
        """Tokens of the answer, of the chat before it, and of these the cached."""
        self.type(text + "\r")
        return tuple(int(number) for number in self.wait_for(END).groups())

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.master)


def test_a_chat_at_a_terminal():
    terminal = Terminal(*SHORT)
    try:
        terminal.wait_for("Ask something", 120)
        made, first, _ = terminal.ask("hello")
        assert made > 0
        # A second turn has the first one before it; after /reset it has not.
        _, second, cached = terminal.ask("again")
        assert second > first + 5 and cached > 5
        terminal.type("/reset\r")
        terminal.wait_for("forgotten")
        assert terminal.ask("hello")[:2] == (made, first)
        terminal.type("/stats\r")
        terminal.wait_for("0 running, 0 waiting")
        terminal.type("/nonsense\r")
        terminal.wait_for("no /nonsense here")
        terminal.type("\x03")
        terminal.wait_for("or /exit leaves")
        # Between two prompts the terminal itself would take the key.
        for _ in range(10):
            terminal.type("\x04")
            with suppress(subprocess.TimeoutExpired):
                terminal.process.wait(3)
                break
        assert terminal.process.poll() == 0
    finally:
        terminal.close()


def test_ctrl_c_stops_the_answer_only():
    terminal = Terminal("--shell-max-tokens", "100000")
    try:
        terminal.wait_for("Ask something", 120)
        for _ in range(20):  # until one is long enough to be caught
            terminal.type("/reset\r")
            terminal.wait_for("forgotten")
            terminal.type("tell me everything\r")
            terminal.wait_for("everything")
            time.sleep(0.1)
            terminal.type("\x03")
            if (
                "stopped"
                in terminal.wait_for(r"\[stopped\]|or /exit leaves")[0]
            ):
                break
        else:
            raise AssertionError("no answer was stopped")
        stats = ("", "")
        until = time.monotonic() + 30  # a step may still be running
        while stats != ("0", "1") and time.monotonic() < until:
            terminal.type("/stats\r")
            stats = terminal.wait_for(
                r"(\d+) running, .* (\d+) aborted"
            ).groups()
        assert stats == ("0", "1")
        terminal.type("/exit\r")
        assert terminal.process.wait(15) == 0
    finally:
        terminal.close()


def test_lines_from_a_pipe():
    done = subprocess.run(
        [*COMMAND, *SHORT],
        cwd=ROOT,
        env=ENVIRONMENT,
        input="hello\n\n/help\nhello again\n/reset\nhello\n/stats\n",
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    first, second, third = re.findall(END, done.stdout)
    assert int(second[1]) > int(first[1])
    assert third[:2] == first[:2]
    assert "/reset  forget" in done.stdout and " running" in done.stdout
    answers = re.split(END, done.stdout.partition("...\n")[2])
    assert "> " not in answers[0]  # nobody is there to be prompted
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f]", done.stdout)
    assert done.stderr == ""


def test_a_dead_engine_ends_the_chat(tmp_path):
    read, write = os.pipe()
    with (
        Live(
            tmp_path, model_path(MODEL), module="minisgl.shell", stdin=read
        ) as shell,
        open(write, "w") as typed,
    ):
        os.close(read)
        typed.write("hello\n")
        typed.flush()
        wait_until(lambda: re.search(END, shell.said), 120, "an answer")
        [scheduler] = filter(has_torch, shell.children())
        os.kill(scheduler, signal.SIGKILL)
        assert shell.wait_end(10) == 1
        [line] = shell.errors
        assert "scheduler" in line and "SIGKILL" in line
