"""A scheduler as a process of its own."""

from __future__ import annotations

import signal
from multiprocessing.queues import Queue

from minisgl.scheduler.config import SchedulerConfig
from minisgl.scheduler.structured import StructuredScheduler


def schedule_worker(config: SchedulerConfig, ack_queue: Queue[str]) -> None:
    """Answer requests until an ExitMsg comes; the main function of a process.

    ack_queue: rank 0 puts one line in when the model is loaded on all ranks and
        requests are being received.
    """
    # Ctrl-C reaches all processes of a terminal. The parent decides what follows.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    scheduler = StructuredScheduler(config)
    scheduler.sync_all_ranks()
    if config.tp_info.is_primary():
        ack_queue.put("the scheduler is ready")
    scheduler.run_forever()
    scheduler.shutdown()
    scheduler.engine.shutdown()
