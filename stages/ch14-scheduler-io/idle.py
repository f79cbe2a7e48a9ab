"""What a scheduler does while nobody asks: its CPU time, and the check of pages."""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from threading import Timer

sys.path[:0] = [str(Path(__file__).resolve().parents[i]) for i in (2, 0)]

import torch
from peers import config_for

from minisgl.message import BaseBackendMsg, ExitMsg
from minisgl.scheduler.addresses import make_socket_dir, remove_socket_dir
from minisgl.scheduler.cache import CacheManager
from minisgl.scheduler.io import SchedulerIOMixin
from minisgl.utils import ZmqPushQueue
from tools.stagekit import measured, model_path, run

SECONDS = 2.0


def cpu_time(wait: Callable[[], object], client: ZmqPushQueue) -> str:
    """CPU time of this process until the message that comes in 2 s is here."""
    Timer(SECONDS, client.put, [ExitMsg()]).start()
    before = time.process_time()
    wait()
    return measured(1000 * (time.process_time() - before), "ms")


def check_time(pages: int) -> str:
    table = torch.zeros(1, 8, dtype=torch.int32)
    manager = CacheManager(pages, 1, table, "naive")
    manager.free_pages = manager.free_pages[torch.randperm(pages)]
    before = time.perf_counter()
    manager.check_integrity()
    return measured(1000 * (time.perf_counter() - before), "ms")


def main(model: str = "qwen3-tiny") -> None:
    config = config_for(str(model_path(model)))
    make_socket_dir(config)
    io = SchedulerIOMixin(config, None)
    client = ZmqPushQueue(
        config.zmq_backend_addr, False, BaseBackendMsg.encoder
    )

    def ask_again_and_again() -> None:
        while not io.receive_msg():
            pass

    waiting = cpu_time(lambda: io.receive_msg(blocking=True), client)
    asking = cpu_time(ask_again_and_again, client)
    print("CPU time in two seconds without a message")
    print(f"  wait for one         {waiting:>12}")
    print(f"  ask again and again  {asking:>12}")
    print("one check of the pages")
    for pages in (4096, 65536, 1 << 20):
        print(f"  {pages:<19,}  {check_time(pages):>12}")
    io.close_queues()
    client.stop()
    remove_socket_dir(config)


if __name__ == "__main__":
    run(main)
