"""What a tokenizer process costs with transformers, and a token of a long answer."""

import subprocess
import sys
from pathlib import Path
from time import process_time

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from minisgl.message import DetokenizeMsg
from minisgl.tokenizer.detokenize import DetokenizeManager
from minisgl.tokenizer.text import Tokenizer, load_light_tokenizer
from tools.stagekit import measured, model_path, run
from tools.zoo.tokenizer import TEXT

LOADERS = {
    "transformers": "minisgl.utils.hf import load_tokenizer",
    "this chapter": "minisgl.tokenizer.text import load_light_tokenizer",
}
START = """
import resource
from {} as load
load({!r})
used = resource.getrusage(resource.RUSAGE_SELF)
print(used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)
"""


class Counting:
    """A tokenizer that counts the ids it decodes."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.is_text, self.is_byte = tokenizer.is_text, tokenizer.is_byte
        self.tokenizer, self.ids = tokenizer, 0

    def decode(self, ids: list[int]) -> str:
        self.ids += len(ids)
        return self.tokenizer.decode(ids)


def everything(tokenizer: Counting, ids: list[int]) -> str:
    """The naive way: decode from the first token on, send what is new."""
    sent = ""
    for end in range(1, len(ids) + 1):
        text = tokenizer.decode(ids[:end])
        if not text.endswith("\ufffd"):
            sent += text[len(sent) :]
    return sent


def window(tokenizer: Counting, ids: list[int]) -> str:
    """The chapter's way."""
    manager = DetokenizeManager(tokenizer)  # type: ignore[arg-type]
    last = len(ids) - 1
    return "".join(
        manager.detokenize([DetokenizeMsg(1, token, i == last)])[0]
        for i, token in enumerate(ids)
    )


def show_starts(path: str) -> None:
    """Start processes that load a tokenizer; the fastest of three counts."""
    print("a process with a tokenizer of  computes for  and has")
    for name, load in LOADERS.items():
        command = [sys.executable, "-c", START.format(load, path)]
        printed = [subprocess.check_output(command, cwd=ROOT) for _ in range(3)]
        seconds, size = min([*map(float, one.split())] for one in printed)
        cells = measured(seconds, "s"), measured(size, "MB", 0)
        print(f"{name:30}{cells[0]:>13}{cells[1]:>9}")


def show_answers(tokenizer: Tokenizer) -> None:
    """Stream answers of three lengths both ways."""
    text = tokenizer.encode(TEXT)
    print("\ntokens  decoded: everything   window  time: everything   window")
    for length in (250, 1000, 4000):
        ids = (text * (length // len(text) + 1))[:length]
        counts, times, texts = [], [], []
        for stream in (everything, window):
            counting = Counting(tokenizer)
            start = process_time()
            texts.append(stream(counting, ids))
            times.append(measured(1e3 * (process_time() - start), "ms", 0))
            counts.append(counting.ids)
        assert texts[0] == texts[1] == tokenizer.decode(ids)
        numbers = f"{length:6}  {counts[0]:19,}  {counts[1]:7,}"
        print(f"{numbers}  {times[0]:>16}  {times[1]:>7}")


def main(model: str = "qwen3-tiny") -> None:
    """Both comparisons for one model's tokenizer."""
    path = str(model_path(model))
    show_starts(path)
    show_answers(load_light_tokenizer(path))


if __name__ == "__main__":
    run(main)
