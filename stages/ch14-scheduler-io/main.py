"""A scheduler as a process: requests, an abort, nonsense, and the end."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[i]) for i in (2, 0)]

from peers import Called, Server, message

from minisgl.message import AbortBackendMsg, ExitMsg
from tools.stagekit import measured, model_path, run

LENGTHS = {1: 8, 2: 24, 3: 16}
KINDS = {"1 request": (1, 20), "16 requests": (16, 20), "a refusal": (1, 0)}


def costs(called: Called, server: Server) -> None:
    print(f"\n{'one step of':14}{'called':>12}{'in a process':>16}")
    for kind, (count, prompt) in KINDS.items():
        msgs = [message(100 + n, 32, prompt) for n in range(count)]
        rounds: tuple[list[float], list[float]] = [], []
        for _ in range(6):  # in turns
            for times, peer in zip(rounds, (called, server), strict=True):
                times.append(peer.typical(msgs, 1 if prompt else 32))
        cells = [measured(1000 * min(times), "ms", 2) for times in rounds]
        print(f"{kind:14}{cells[0]:>12}{cells[1]:>16}")


def main(model: str = "qwen3-tiny") -> None:
    """Ask a scheduler that is called, and one in a process, for the same."""
    called = Called(str(model_path(model)))
    with Server(str(model_path(model))) as server:
        folder = server.config.socket_dir
        print("socket files:", *sorted(p.name for p in folder.iterdir()))
        for peer in (called, server):
            for uid, length in LENGTHS.items():
                peer.ask(message(uid, length))
                peer.until(uid, count=2)  # the next one comes when it runs
            peer.until(*LENGTHS)
        for uid in LENGTHS:
            got, expected = server.tokens(uid), called.tokens(uid)
            print(f"request {uid}: {len(got)} tokens, same: {got == expected}")
        server.ask(message(4, 400))
        server.until(4, count=3)
        server.requests.put_raw(b"\xc1")  # which is no message
        server.ask(AbortBackendMsg(4), message(5, 4))
        server.until(5)
        print("request 4, aborted: ended:", server.said[4][-1].finished)
        costs(called, server)
        server.ask(message(6, 400), message(7, 400))
        server.until(6, 7, count=2)
        server.ask(ExitMsg())
        server.until(6, 7)
        print("\nrequests 6 and 7:", server.said[7][-1].error)
        code, left = server.exit_code(), len([*folder.iterdir()])
        print(f"exit code {code}, files left: {left}")


if __name__ == "__main__":
    run(main)
