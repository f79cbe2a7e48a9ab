"""A deployment from the start of Ray to the end of its last process."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from math import ceil
from pathlib import Path

import ray
from ray import serve
from ray.exceptions import RayError
from ray.serve.config import HTTPOptions, ProxyLocation
from ray.serve.handle import DeploymentHandle

from minisgl.deploy.cluster import APP, QUIET, ROUTER, deploy
from minisgl.deploy.settings import DeployArgs
from minisgl.server.listener import base_url, curl_command, listen

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
# In bytes. Nothing is put into it.
_OBJECT_STORE = 80 * 2**20
# Of what Ray puts below its folder, the longest path of a socket.
_LONGEST_NAME = 70
_LONGEST_PATH = 107


class Stopped(BaseException):
    """Somebody has said stop."""


def run(args: DeployArgs) -> int:
    """Deploy, wait until somebody says stop, end it; the exit code.

    It is 0 after SIGINT or SIGTERM, 1 after a failure, of which one line on
    stderr tells. A second signal does not wait for answers.
    """
    begin = time.monotonic()
    try:
        with _connected(args) as args, _served(args) as url:
            name = args.server.model_name
            print(f"loading {args.replicas} x {name} ...", flush=True)
            deploy(args, gpus_of_one(args))
            router = serve.get_deployment_handle(ROUTER, APP)
            while router.ready.remote().result() < args.replicas:
                time.sleep(0.1)
            seconds = time.monotonic() - begin
            print(f"ready after {seconds:.1f} s: {name} at {url}, try")
            print(curl_command(args.server, url), flush=True)
            try:
                while True:
                    time.sleep(1)
            except Stopped:
                _drain(router, args.drain)
    except Stopped:
        pass
    except (OSError, RuntimeError, ValueError, RayError) as error:
        print(f"error: {_last_line(error)}", file=sys.stderr, flush=True)
        return 1
    return 0


def _heed_signals() -> None:
    """Let both signals raise `Stopped`."""

    def stop(number: int, frame: object) -> None:
        raise Stopped

    for number in _SIGNALS:
        signal.signal(number, stop)


def _ignore_signals() -> None:
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def _connected(args: DeployArgs) -> Iterator[DeployArgs]:
    """Ray: one of our own, or the cluster's; the settings with all filled in.

    Raises:
        ConnectionError: there is no cluster at the address.
        ValueError: it has too little, or is used already.
    """
    folder = _ray_folder() if args.address is None else None
    for name in ("ray", "ray.serve"):
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        _heed_signals()
        args = replace(args, cpus=args.cpus or cpus_of_one(args))
        _init(args, folder)
        _heed_signals()  # again: Ray has put its own in their place
        _check(args)
        yield args
    finally:
        _ignore_signals()
        ray.shutdown()
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def _init(args: DeployArgs, folder: Path | None) -> None:
    if args.address is not None:
        _reach(args.address)
        ray.init(args.address, logging_level=logging.WARNING)
        return
    assert args.cpus is not None
    ray.init(
        "local",
        num_cpus=ceil(args.replicas * args.cpus),
        include_dashboard=False,
        object_store_memory=_OBJECT_STORE,
        logging_level=logging.WARNING,
        _temp_dir=str(folder),
    )


def _reach(address: str) -> None:
    """See that somebody listens there; Ray takes more than a minute for it."""
    host, _, port = address.rpartition(":")
    if address != "auto":
        try:
            socket.create_connection((host, int(port)), 5).close()
        except OSError:
            raise ConnectionError(f"no Ray cluster at {address}") from None


def _ray_folder() -> Path:
    """A folder for Ray's sockets and logs, where their paths are not too long."""
    parent = tempfile.gettempdir()
    if len(os.fsencode(parent)) + 20 + _LONGEST_NAME > _LONGEST_PATH:
        parent = "/tmp"
    return Path(tempfile.mkdtemp(prefix="minisgl-ray-", dir=parent))


def cpus_of_one(args: DeployArgs) -> float:
    """What a replica gets if nobody has said."""
    if args.address is not None:
        return 1
    return max(1, (os.cpu_count() or 1) // args.replicas)


def gpus_of_one(args: DeployArgs) -> int:
    """One for each rank, where there are any and the device may be one."""
    device = args.server.device
    some = ray.cluster_resources().get("GPU", 0) > 0
    wanted = device.startswith("cuda") or (device == "auto" and some)
    return args.server.tp_info.size if wanted else 0


def _check(args: DeployArgs) -> None:
    """That all replicas fit: Serve would wait for ever."""
    assert args.cpus is not None
    found = ray.cluster_resources()
    wanted = {"CPU": args.replicas * args.cpus}
    wanted["GPU"] = args.replicas * gpus_of_one(args)
    for name, count in wanted.items():
        if count > (have := found.get(name, 0)):
            raise ValueError(
                f"{args.replicas} replicas need {count:g} {name}s, and Ray has "
                f"{have:g}; take fewer --replicas, or --cpus for each"
            )
    if args.address is not None and serve.status().proxies:
        raise ValueError(
            "Ray Serve is in use on this cluster; end it with serve shutdown"
        )


@contextmanager
def _served(args: DeployArgs) -> Iterator[str]:
    """Serve, which listens at the one address; what runs on it ends, too.

    Raises:
        OSError: the port is taken.
    """
    host, port = args.server.server_host, args.server.server_port
    # Serve's own attempt would end in a traceback, and later.
    with listen(host, port) as listener:
        url = base_url(listener)
        port = listener.getsockname()[1]
    try:
        serve.start(
            proxy_location=ProxyLocation.HeadOnly,
            http_options=HTTPOptions(host=host, port=port),
            logging_config=QUIET,
        )
        yield url
    finally:
        # Whoever has said stop twice need not say it a third time.
        _ignore_signals()
        try:
            serve.delete(APP)
            if args.address is not None:  # else Ray takes it along
                serve.shutdown()
        except (RayError, RuntimeError, TimeoutError) as error:
            print(f"while stopping: {error}", file=sys.stderr)


def _drain(router: DeploymentHandle, seconds: float) -> None:
    """Wait for the answers that have begun, unless told again or too long."""
    until = time.monotonic() + seconds
    told = 0
    try:
        while (left := router.close.remote().result()) and (
            time.monotonic() < until
        ):
            if left != told:
                print(f"stopping after {left} more answers", flush=True)
                told = left
            time.sleep(0.2)
    except (Stopped, RayError):
        pass


def _last_line(error: Exception) -> str:
    """The reason alone: Ray puts the traceback of the other process before it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    last = lines[-1] if lines else type(error).__name__
    return last.removeprefix("RuntimeError: ")
