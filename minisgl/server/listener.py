"""The socket that clients connect to, and how they do it."""

from __future__ import annotations

import errno
import json
import shlex
import socket

from minisgl.server.args import ServerArgs

_BACKLOG = 2048


def listen(host: str, port: int) -> socket.socket:
    """A socket that clients can connect to; port 0 takes a free one.

    It listens at once. A port that is only bound can be bound by others too, if
    they allow it to be used again, as servers do.

    Raises:
        OSError: with one line for the user.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    both = host == "::" and socket.has_dualstack_ipv6()
    try:
        listener = socket.create_server(
            (host, port),
            family=family,
            backlog=_BACKLOG,
            dualstack_ipv6=both,
        )
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            reason = "this port is in use; stop who has it or choose another"
        else:
            reason = str(error.strerror).partition(" (while")[0]
        raise OSError(f"--host {host} --port {port}: {reason}") from None
    # asyncio sets this for its own sockets only; connections inherit it.
    # Without it the second of two small packets waits 40 ms for the client's
    # acknowledgement of the first.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def base_url(listener: socket.socket) -> str:
    """How a program on this machine reaches it."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def curl_command(args: ServerArgs, url: str) -> str:
    """A first request, to be pasted into a shell."""
    question = {"role": "user", "content": "What is the capital of France?"}
    body = {"model": args.model_name, "messages": [question], "max_tokens": 64}
    words = ["curl", f"{url}/v1/chat/completions"]
    words += ["-H", "content-type: application/json"]
    words += ["-d", json.dumps(body, ensure_ascii=False)]
    command = shlex.join(words)
    if args.api_key is not None:
        # Not the key itself: what a terminal shows is read by others too.
        command += ' -H "authorization: Bearer $MINISGL_API_KEY"'
    return command
