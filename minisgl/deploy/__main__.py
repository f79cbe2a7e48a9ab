"""`python -m minisgl.deploy`: several servers behind one address."""

from __future__ import annotations

import os
import secrets
import sys
from dataclasses import replace
from typing import Annotated

import typer

from minisgl.deploy.policy import POLICIES
from minisgl.deploy.settings import DeployArgs
from minisgl.server.args import parse_args
from minisgl.server.command import _UsageError
from minisgl.server.folders import resolve_model
from minisgl.server.listener import listen

PROGRAM = "python -m minisgl.deploy"
_MISSING = (
    "{} is missing: pip install 'handwritten-minisgl[deploy]'; one server alone "
    "needs nothing more, python -m minisgl"
)
app = typer.Typer(add_completion=False)


@app.command(
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True}
)
def deploy(
    context: typer.Context,
    replicas: Annotated[int, typer.Option(help="How many servers.")] = 2,
    policy: Annotated[
        str,
        typer.Option(
            help=f"Who gets a request: {', '.join(POLICIES.supported_names())}."
        ),
    ] = "prefix",
    address: Annotated[
        str | None,
        typer.Option(
            help="Of a Ray cluster, auto for that of this machine. If not "
            "given, a Ray of our own is started here."
        ),
    ] = None,
    cpus: Annotated[
        float | None,
        typer.Option(
            help="That Ray reserves for a replica. If not given: the cores "
            "divided by the replicas, on a cluster 1."
        ),
    ] = None,
    drain: Annotated[
        float,
        typer.Option(help="Most seconds that answers get to end at a stop."),
    ] = 30.0,
) -> None:
    """Serve one model with several servers behind one address, on Ray Serve.

    All options of python -m minisgl can be given, too.
    """
    server, shell = parse_args(context.args)
    if shell:
        raise ValueError("--shell is for python -m minisgl")
    args = DeployArgs(server, replicas, policy, address, cpus, drain)
    if address is None:
        # Seen here, a mistake is one line and not one of each replica.
        listen(server.server_host, server.server_port).close()
        args = replace(args, server=resolve_model(server))
        _prepare_own_ray()
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    try:
        from minisgl.deploy.launch import run
    except ModuleNotFoundError as error:
        raise ValueError(_MISSING.format(error.name)) from None
    raise SystemExit(run(args))


def _prepare_own_ray() -> None:
    """What Ray reads from the environment when it is imported."""
    # Its ports are for this machine alone, whatever system the name speaks of,
    # and for those who know a token, which otherwise lies in the home folder.
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    os.environ["RAY_AUTH_MODE"] = "token"
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    # Seconds: on a machine that loads models at the same time 5 are too few.
    os.environ.setdefault("RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S", "60")
    # Added to ours. Ray would add 15, and whatever else runs would come first.
    os.environ.setdefault("RAY_worker_niceness", "0")


def main() -> None:
    """Run the command; what is wrong with its input is one line."""
    command = typer.main.get_command(app)
    try:
        command.main(prog_name=PROGRAM, standalone_mode=False)
    except _UsageError as error:
        raise SystemExit(f"error: {error.format_message()}") from None
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
