"""A server from its first process to its last."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from socket import socket
from typing import TYPE_CHECKING

from minisgl.scheduler.addresses import make_socket_dir, remove_socket_dir
from minisgl.server.args import ServerArgs
from minisgl.server.child import Child
from minisgl.server.folders import remove_stale_folders, resolve_model
from minisgl.server.listener import base_url, curl_command, listen
from minisgl.server.supervisor import End, Supervisor

if TYPE_CHECKING:
    from minisgl.server.frontend import FrontendManager

Start = Callable[[ServerArgs], list[Child]]


def run_api_server(
    config: ServerArgs, start_backend: Start, run_shell: bool
) -> int:
    """Start the other processes, talk to clients, stop all; the exit code.

    It is 0 after SIGINT or SIGTERM or the end of a shell, 1 after a failure, of
    which one line on stderr tells. A second Ctrl-C ends all at once, with 130.

    config: the settings; a port that is taken ends it before anything starts.
    start_backend: starts the other processes.
    run_shell: chat in the terminal instead of listening.
    """
    listener = None
    try:
        if not run_shell:
            listener = listen(config.server_host, config.server_port)
        config = resolve_model(config)
        remove_stale_folders(config)
        make_socket_dir(config)
    except OSError as error:
        return _report(End(1, " ".join(str(error).split())))
    try:
        return _report(asyncio.run(_live(config, start_backend, listener)))
    finally:
        remove_socket_dir(config)


def _report(end: End) -> int:
    if end.code:
        print(f"error: {end.reason}", file=sys.stderr, flush=True)
    return end.code


async def _live(
    args: ServerArgs, start_backend: Start, listener: socket | None
) -> End:
    """From the start of the children to the end of the last one."""
    supervisor = Supervisor(args)
    print(f"loading {args.model_name} ...", flush=True)
    try:
        supervisor.watch(start_backend(args))
        # Only now: it takes a moment, while the children load what they need.
        from minisgl.server.api_server import connect

        manager = connect(args)
        if listener is None:
            await _chat(args, supervisor, manager)
        else:
            await _serve(args, supervisor, manager, listener)
        manager.shutdown()
    finally:
        await supervisor.stop()
    return await supervisor.ended


async def _serve(
    args: ServerArgs,
    supervisor: Supervisor,
    manager: FrontendManager,
    listener: socket,
) -> None:
    """Answer HTTP: with 503 while the model loads, and when the end has come."""
    from minisgl.server.api_server import create_app
    from minisgl.server.gate import Gate, HttpServer

    gate = Gate(create_app(manager))
    server = HttpServer(gate, args.log_level)
    broken = End(1, "the HTTP server ended")
    serving = supervisor.run(server.serve([listener]), broken)
    if await supervisor.wait_ready():
        gate.closed = None
        seconds = time.monotonic() - supervisor.started
        url = base_url(listener)
        print(f"ready after {seconds:.1f} s: {args.model_name} at {url}, try")
        print(curl_command(args, url), flush=True)
    end = await supervisor.ended
    gate.closed = end.reason
    manager.fail_all(end.reason)
    server.should_exit = True
    await asyncio.gather(serving, supervisor.stop())


async def _chat(
    args: ServerArgs, supervisor: Supervisor, manager: FrontendManager
) -> None:
    """Talk to the user until one of the two has enough."""
    from minisgl.server.shell import Shell

    if not await supervisor.wait_ready():
        return
    shell = Shell(manager)
    supervisor.interrupt = shell.interrupt
    chatting = supervisor.run(shell.run(), End(0, "the user has left"))
    await supervisor.ended
    chatting.cancel()
    await asyncio.gather(chatting, return_exceptions=True)
