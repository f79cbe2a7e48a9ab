"""Starts the processes of a server."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing.queues import Queue
from typing import Any

from minisgl.distributed import DistributedInfo
from minisgl.server.args import ServerArgs, parse_args
from minisgl.server.child import Child
from minisgl.server.threads import ONE_THREAD, environment, limit_threads

# Most messages that a tokenizer takes before it passes on what came of them.
_LOCAL_BS = 32


def _run_scheduler(args: ServerArgs, ack_queue: Queue[str]) -> None:
    """The main function of a scheduler's process."""
    if args.silent_output:
        logging.disable(logging.INFO)
    limit_threads(args)
    # Only here: the parent, which imports this file too, does without torch.
    from minisgl.scheduler.server import schedule_worker

    schedule_worker(args, ack_queue)


def _run_tokenizer(
    args: ServerArgs, settings: dict[str, Any], ack_queue: Queue[str]
) -> None:
    """The main function of the process of a tokenizer or detokenizer."""
    if args.silent_output:
        logging.disable(logging.INFO)
    from minisgl.tokenizer import tokenize_worker

    tokenize_worker(
        tokenizer_path=args.model_path,
        create=args.tokenizer_create_addr,
        backend_addr=args.zmq_backend_addr,
        frontend_addr=args.zmq_frontend_addr,
        local_bs=_LOCAL_BS,
        ack_queue=ack_queue,
        **settings,
    )


def _tokenizers(args: ServerArgs) -> Iterator[tuple[str, dict[str, Any]]]:
    """The tokenizer processes by name, with what only they are told."""
    name = "tokenizer" if args.share_tokenizer else "detokenizer"
    yield name, {"addr": args.zmq_detokenizer_addr}
    for i in range(args.num_tokenizer):
        settings = {"addr": args.zmq_tokenizer_addr, "tokenizer_id": i}
        yield f"tokenizer-{i}", settings


def start_backend(args: ServerArgs) -> list[Child]:
    """A scheduler for each rank, a detokenizer, and tokenizers if wanted.

    Returns at once; the processes say when they can work.
    """
    folder, size = args.socket_dir, args.tp_info.size
    children = []
    for rank in range(size):
        info = DistributedInfo(rank, size)
        name = "scheduler" if size == 1 else f"scheduler-{rank}"
        kwargs: dict[str, Any] = {"args": replace(args, tp_info=info)}
        child = Child.start(
            name,
            _run_scheduler,
            kwargs,
            folder,
            says_ready=info.is_primary(),  # it waits for the others
            takes_exit=True,
        )
        children.append(child)
    with environment(ONE_THREAD):
        for name, settings in _tokenizers(args):
            kwargs = {"args": args, "settings": settings}
            child = Child.start(name, _run_tokenizer, kwargs, folder)
            children.append(child)
    return children


def launch_server(run_shell: bool = False) -> None:
    """Read the command line, serve until somebody says stop, and exit.

    Raises:
        SystemExit: always; `lifecycle.run_api_server` lists the codes.
    """
    args, run_shell = parse_args(sys.argv[1:], run_shell)
    os.environ["LOG_LEVEL"] = args.log_level.upper()
    from minisgl.server.lifecycle import run_api_server

    try:
        sys.exit(run_api_server(args, start_backend, run_shell))
    except KeyboardInterrupt:  # before there was anything to stop
        sys.exit(128 + signal.SIGINT)
