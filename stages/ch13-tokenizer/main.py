"""An answer as it streams, through a tokenizer process and a real engine."""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path[:0] = [str(Path(__file__).resolve().parents[i]) for i in (2, 0)]

from worker import start_worker

from minisgl.core import SamplingParams
from minisgl.llm import LLM
from minisgl.message import DetokenizeMsg, TokenizeMsg
from tools.stagekit import load_tokenizer, model_path, run


class Engine(LLM):
    """Keeps every message it would send."""

    sent: list[DetokenizeMsg]

    def offline_send_result(self, reply: list[DetokenizeMsg]) -> None:
        super().offline_send_result(reply)
        self.sent += reply


def main(
    model: str = "qwen3-tiny",
    question: str = "Tell me Paris.",
    max_tokens: int = 14,
    device: str = "cpu",
) -> None:
    """Ask, and show each token alone and as it is streamed."""
    folder, wish = model_path(model), SamplingParams(max_tokens=max_tokens)
    naive, alone, streamed = load_tokenizer(folder), "", ""
    ask = TokenizeMsg(0, [{"role": "user", "content": question}], wish)
    with (
        TemporaryDirectory() as short,
        start_worker(f"ipc://{short}/", folder) as worker,
    ):
        prompt = worker.prompt(ask)
        print(f"{question!r} in a chat: {len(prompt)} tokens\n")
        engine = Engine(str(folder), "float32", device=device)
        engine.sent = []
        [result] = engine.generate([prompt], wish, progress=False)
        print("token  alone        streamed")
        for msg in engine.sent:
            piece = worker.piece(msg)
            one = naive.decode(msg.next_token, skip_special_tokens=True)
            print(f"{msg.next_token:5}  {one!r:11}  {piece!r}")
            alone, streamed = alone + one, streamed + piece
        print(f"\nalone     {alone!r}\nstreamed  {streamed!r}")
        same = "yes" if streamed == result["text"] else "no"
        print("the text of generate:", same)


if __name__ == "__main__":
    run(main)
