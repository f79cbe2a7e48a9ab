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

from tests.live import ROOT, SMALL, Live, has_torch, wait_until
from tools.models import model_path

MODEL = "qwen3-tiny"
COMMAND = [sys.executable, "-m", "minisgl.shell", "--model"]
COMMAND += [str(model_path(MODEL)), *SMALL, "--max-seq-len-override", "1024"]
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "TERM": "xterm"}
END = r"\[(\d+) tokens, \d+ a second, after a chat of (\d+), (\d+) of them cached\]"


class Terminal:
    """A shell at a pseudo terminal: type keys, wait for what is shown."""

    def __init__(self):
        self.master, slave = pty.openpty()
        self.process = subprocess.Popen(
            COMMAND,
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


def test_a_chat_at_a_terminal():
    terminal = Terminal()
    try:
        terminal.wait_for("Ask something", 120)
        made, first, _ = terminal.ask("hello")
        assert made > 0
        # A second turn has the first one before it; after /reset it has not.
        _, second, cached = terminal.ask("again")
        assert second > first + made / 2 and cached > 0
        terminal.type("/reset\r")
        terminal.wait_for("forgotten")
        assert terminal.ask("hello")[1] == first
        terminal.type("/stats\r")
        terminal.wait_for(r"\b0 running\b")
        terminal.type("/nonsense\r")
        terminal.wait_for("no /nonsense here")
        # Ctrl-C stops an answer, as soon as one is long enough to be caught.
        for _ in range(20):
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
        # A stopped answer is part of the chat.
        _, later, _ = terminal.ask("and then?")
        assert later > first
        terminal.wait_for("> ")
        terminal.type("\x04")
        assert terminal.process.wait(15) == 0
    finally:
        terminal.process.kill()
        terminal.process.wait()
        os.close(terminal.master)


def test_lines_from_a_pipe():
    done = subprocess.run(
        COMMAND,
        cwd=ROOT,
        env=ENVIRONMENT,
        input="hello\n\n/help\nhello again\n/stats\n",
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert len(re.findall(END, done.stdout)) == 2
    assert "/reset  forget" in done.stdout and " running" in done.stdout
    assert "> " not in done.stdout.split("loading")[0]
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
