"""How many threads each process computes with."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from minisgl.server.args import ServerArgs
from minisgl.utils import init_logger

# Libraries of a tokenizer process would start a thread a core each, which the
# scheduler needs more. They read this when they are loaded.
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": os.environ.get("TOKENIZERS_PARALLELISM", "false"),
}


def count_cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def limit_threads(args: ServerArgs) -> None:
    """Set and log the number of torch's threads in the process of a rank.

    It is `num_threads` if given; else OMP_NUM_THREADS, which torch reads by
    itself; else what torch chooses, but no more than the rank's share of the
    cores. Ranks that together have more threads than there are cores wait for
    each other in every operator.
    """
    import torch

    info = args.tp_info
    if args.num_threads is not None:
        torch.set_num_threads(args.num_threads)
    elif "OMP_NUM_THREADS" not in os.environ:
        share = max(1, count_cores() // info.size)
        torch.set_num_threads(min(torch.get_num_threads(), share))
    count = torch.get_num_threads()
    logger = init_logger(__name__, f" TP{info.rank}")
    logger.info(f"torch computes with {count} of {count_cores()} cores")


@contextmanager
def environment(settings: Mapping[str, str]) -> Iterator[None]:
    """Processes that are started inside find these in their environment."""
    before = dict(os.environ)
    os.environ.update(settings)
    try:
        yield
    finally:
        for name in settings.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)
