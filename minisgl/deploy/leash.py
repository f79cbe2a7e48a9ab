"""`python -m minisgl.deploy.leash`: a server that ends with its parent.

Its settings come through stdin, pickled, so that no key is on a command line.
Then stdin is a leash: it closes when the parent lets go of it, or is dead.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
from dataclasses import replace
from threading import Thread

from minisgl.scheduler.addresses import unique_suffix
from minisgl.server.args import ServerArgs
from minisgl.server.launch import start_backend


def _end_with_parent() -> None:
    # Not sys.stdin, whose lock would be held while Python ends.
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    """Serve until the leash is loose.

    Raises:
        SystemExit: always; `lifecycle.run_api_server` lists the codes.
    """
    args: ServerArgs = pickle.load(sys.stdin.buffer)
    Thread(target=_end_with_parent, daemon=True).start()
    os.environ["LOG_LEVEL"] = args.log_level.upper()
    from minisgl.server.lifecycle import run_api_server

    args = replace(args, _unique_suffix=unique_suffix())
    sys.exit(run_api_server(args, start_backend, run_shell=False))


# Child processes import this file too.
if __name__ == "__main__":
    main()
