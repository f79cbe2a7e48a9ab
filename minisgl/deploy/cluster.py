"""What runs on Ray Serve: replicas, and the router in front of them."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import ray
from ray import serve
from ray.exceptions import RayActorError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from minisgl.deploy.engine import ServerProcess
from minisgl.deploy.fleet import Beat, Fleet
from minisgl.deploy.forward import Forwarder
from minisgl.deploy.policy import POLICIES
from minisgl.deploy.router import create_router
from minisgl.deploy.settings import DeployArgs
from minisgl.message import SHUTTING_DOWN
from minisgl.server.args import ServerArgs
from minisgl.server.gate import Gate

APP, ROUTER, ENGINE = "minisgl", "router", "engine"
QUIET = {"log_level": "WARNING", "enable_access_log": False}
PERIOD = 1.0
"""Seconds from one beat, or question for health, to the next."""
# Seconds that a server may take to end, after its answers have.
_AFTERWARDS = 10.0
# The replicas have queues of their own.
_NO_LIMIT = 100_000
# Seconds for the router to take note of a beat. A call waits for ever if there
# is no router, and at the end of the deployment both end at once.
_PATIENCE = 2.0


class EngineReplica:
    """A server and what Serve wants to know of it.

    Serve starts it, asks for its health, and starts another in its place if it
    is not well. Requests do not come through here; the router goes to the
    server itself.
    """

    def __init__(self, args: ServerArgs) -> None:
        self._page_size = args.page_size
        args = replace(args, server_host=ray.util.get_node_ip_address())
        self._name = serve.get_replica_context().replica_id.unique_id
        self._router = serve.get_deployment_handle(ROUTER, APP)
        self._server = ServerProcess(args)
        self._beat: Beat | None = None
        self._illness: RuntimeError | None = None
        self._beating = asyncio.create_task(self._keep_beating())

    async def _keep_beating(self) -> None:
        while True:
            try:
                numbers = await self._server.health()
            except RuntimeError as error:
                self._illness = error
            else:
                self._illness = None
                if self._beat is None and numbers:
                    tokens = numbers["total_pages"] * self._page_size
                    self._beat = Beat(self._name, self._server.url, tokens)
                await self._tell()
            await asyncio.sleep(PERIOD)

    async def _tell(self, draining: bool = False) -> int:
        """Beat; how many answers from here the router still passes on."""
        if self._beat is None:
            return 0
        beat = self._beat._replace(draining=draining)
        try:
            return await asyncio.wait_for(
                self._router.beat.remote(beat), _PATIENCE
            )
        except (RayActorError, RayServeException, TimeoutError):
            return 0  # there is no router at the moment

    def check_health(self) -> None:
        """Serve asks every second.

        Raises:
            Exception: another replica is to take its place.
        """
        if self._beating.done():  # a mistake of the program
            self._beating.result()
        if self._illness is not None:
            raise self._illness

    async def __del__(self) -> None:
        """Serve calls it, once: end when the router has no answer from here."""
        self._beating.cancel()
        while await self._tell(draining=True):
            await asyncio.sleep(PERIOD / 10)
        await self._server.stop()


@serve.ingress()
class RouterReplica:
    """The router, and how replicas and the command reach it."""

    def __init__(
        self, policy: str, root_path: str, engines: DeploymentHandle
    ) -> None:
        # Nobody calls the handle; Serve starts both because one has the other.
        self._fleet = Fleet(POLICIES[policy]())
        self._forwarder = Forwarder(self._fleet)
        self._root_path = root_path

    def __serve_build_asgi_app__(self) -> Gate:
        app = create_router(self._fleet, self._forwarder, self._root_path)
        self._gate = Gate(app)
        self._gate.closed = None
        return self._gate

    async def beat(self, beat: Beat) -> int:
        """As `Fleet.beat`."""
        return self._fleet.beat(beat)

    async def ready(self) -> int:
        """How many replicas can be asked."""
        return sum(r.is_open for r in self._fleet.replicas.values())

    async def close(self) -> int:
        """Refuse what comes from now on; how many answers are not at their end."""
        self._gate.closed = SHUTTING_DOWN
        return self._forwarder.active


def deploy(args: DeployArgs, gpus: int) -> None:
    """Run it on the Ray that this process is connected to; returns when it is up.

    What runs there already is replaced, one replica after the other: each ends
    when its answers have ended.

    gpus: of one replica.

    Raises:
        RuntimeError: a replica cannot be started; its last line says why.
    """
    assert args.cpus is not None
    engine = serve.deployment(
        EngineReplica,
        name=ENGINE,
        num_replicas=args.replicas,
        ray_actor_options={"num_cpus": args.cpus, "num_gpus": gpus},
        health_check_period_s=PERIOD,
        graceful_shutdown_wait_loop_s=PERIOD / 10,
        graceful_shutdown_timeout_s=args.drain + _AFTERWARDS,
        max_constructor_retry_count=1,
    )
    router = serve.deployment(
        RouterReplica,
        name=ROUTER,
        max_ongoing_requests=_NO_LIMIT,
        ray_actor_options={"num_cpus": 0},
        graceful_shutdown_wait_loop_s=PERIOD / 10,
        graceful_shutdown_timeout_s=args.drain + _AFTERWARDS,
    )
    server = replace(args.server, server_port=0)
    root_path = args.server.root_path
    app = router.bind(args.policy, root_path, engine.bind(server))
    try:
        serve.run(app, name=APP, logging_config=QUIET)
    except RuntimeError as error:  # it names the deployment, and no reason
        found = serve.status().applications[APP].deployments
        raise RuntimeError(found[ENGINE].message) from error
