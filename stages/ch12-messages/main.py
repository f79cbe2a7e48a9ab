"""Messages as bytes, to a process and back, and to two late subscribers."""

import sys
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from time import sleep

sys.path[:0] = [str(Path(__file__).resolve().parents[i]) for i in (2, 0)]

import msgpack
import typer
from helpers import busy_thread, prompt_ids, timed
from peers import process

from minisgl import message as m
from minisgl.sampling_params import SamplingParams
from minisgl.utils import ZmqPubQueue, ZmqPullQueue, ZmqPushQueue

ASK = m.TokenizeMsg(7, "Why is decoding slow?", SamplingParams(max_tokens=64))


def broadcast(base: str, say: ZmqPullQueue, waits: int) -> str:
    """Publish 1 and 2, waiting for subscribers before number `waits`."""
    with process("subscribe", base, count=2):
        pub = ZmqPubQueue(base + "all", True, m.BaseBackendMsg.encoder)
        for uid in (1, 2):
            pub.wait_for_subscribers(2 if uid >= waits else 0)
            pub.put(m.AbortBackendMsg(uid))
        got = [say.get().incremental_output for _ in range(2)]
    pub.stop()
    return " | ".join(got)


def main(model: str = "qwen3-tiny") -> None:
    """Show messages, time waiting and round trips, broadcast twice."""
    user = m.UserMsg(7, prompt_ids(model, ASK.text), ASK.sampling_params)
    token, text = m.DetokenizeMsg(7, 42, False), m.UserReply(7, " It", False)
    for msg in (ASK, user, token, text, m.AbortMsg(7)):
        raw = msgpack.packb(type(msg).encoder(msg))
        print(f"{type(msg).__name__:14}{len(raw):4} bytes")
    back = m.BaseTokenizerMsg.decoder(msgpack.unpackb(raw))
    print(f"{raw} is {back}\n")
    for busy in (nullcontext("nobody"), busy_thread(), process("busy")):
        with busy as name:
            print(f"2 ms beside {name:15}", timed(lambda: sleep(0.002)))
    with TemporaryDirectory() as folder:
        base = f"ipc://{folder}/"
        ask = ZmqPushQueue(base + "ask", True, m.BaseTokenizerMsg.encoder)
        say = ZmqPullQueue(base + "say", True, m.BaseFrontendMsg.decoder)
        with process("echo", base):
            ask.put(ASK)
            print("\necho:", say.get().incremental_output)
            print("round trip:", timed(lambda: [ask.put(ASK), say.get()]))
        print("\nwaits before 2: two got", broadcast(base, say, 2))
        print("waits before 1: two got", broadcast(base, say, 1))


if __name__ == "__main__":
    typer.run(main)
