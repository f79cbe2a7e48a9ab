"""What is decided around Ray, with stand-ins for what Ray would do."""

import asyncio
import importlib
import os
import signal
import socket
import sys
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from minisgl.deploy import __main__ as command
from minisgl.deploy.fleet import Beat
from minisgl.deploy.policy import POLICIES
from minisgl.deploy.settings import DeployArgs
from minisgl.deploy.simulate import Machine, compare
from minisgl.deploy.traffic import Traffic
from minisgl.distributed import DistributedInfo
from minisgl.server.args import ServerArgs

pytestmark = pytest.mark.filterwarnings(
    "ignore:coroutine 'EngineReplica.__del__' was never awaited"
)
# As in docs/outputs/routing-policies.txt.
RECORDED = [
    ("random", 1, 158, 0.828, 200, 767),
    ("least-loaded", 1, 158, 0.828, 200, 767),
    ("prefix", 1, 158, 0.828, 200, 767),
    ("random", 3, 326, 0.555, 432, 2808),
    ("least-loaded", 3, 316, 0.518, 448, 3584),
    ("prefix", 3, 314, 0.82, 168, 584),
]


def settings(tp: int = 1, device: str = "auto", **changes) -> DeployArgs:
    server = ServerArgs(
        "m", DistributedInfo(0, tp), "auto", device=device, page_size=4
    )
    return DeployArgs(server, **changes)


def fake_ray() -> dict[str, ModuleType]:
    """Modules in place of Ray's, which this process must not import: it forks."""
    names = ["ray", "ray.exceptions", "ray.serve", "ray.serve.config"]
    names += ["ray.serve.exceptions", "ray.serve.handle"]
    found = {name: ModuleType(name) for name in names}
    for name, kind in (
        ("exceptions", "RayError"),
        ("exceptions", "RayActorError"),
    ):
        setattr(found[f"ray.{name}"], kind, type(kind, (Exception,), {}))
    for name, kind in (
        ("config", "HTTPOptions"),
        ("config", "ProxyLocation"),
        ("exceptions", "RayServeException"),
        ("handle", "DeploymentHandle"),
    ):
        made = type(kind, (Exception,), {})
        setattr(found[f"ray.serve.{name}"], kind, made)
    ray, serve = found["ray"], found["ray.serve"]
    ray.serve, ray.util = serve, SimpleNamespace()
    serve.ingress = lambda: lambda kind: kind
    return found


@pytest.fixture
def launch(monkeypatch):
    """The module, with stand-ins for Ray's."""
    for name, module in fake_ray().items():
        monkeypatch.setitem(sys.modules, name, module)
    mine = [f"minisgl.deploy.{name}" for name in ("cluster", "launch")]
    for name in mine:
        monkeypatch.delitem(sys.modules, name, raising=False)
    handlers = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)}
    yield importlib.import_module(mine[1])
    for number, handler in handlers.items():
        signal.signal(number, handler)
    for name in mine:
        sys.modules.pop(name, None)


@pytest.fixture
def resources(launch, monkeypatch):
    """What the cluster has; a test fills it."""
    found: dict[str, float] = {}
    monkeypatch.setattr(
        launch.ray, "cluster_resources", lambda: found, raising=False
    )
    return found


class Calls(list):
    """A stand-in that notes how it is called; what it returns is given."""

    def __init__(self, *returns) -> None:
        super().__init__()
        self.returns = [*returns]

    def __call__(self, *args, **kwargs):
        self.append((args, kwargs))
        return self.returns.pop(0) if self.returns else None


def handle(**methods) -> SimpleNamespace:
    """A Serve handle: each method has a remote, whose result is the call's."""

    def method(function):
        result = lambda *a: SimpleNamespace(result=lambda: function(*a))  # noqa: E731
        return SimpleNamespace(remote=result)

    return SimpleNamespace(**{n: method(f) for n, f in methods.items()})


class TestResources:
    def test_cpus(self, launch, monkeypatch):
        monkeypatch.setattr(os, "cpu_count", lambda: 9)
        cpus = launch.cpus_of_one
        assert cpus(settings(replicas=4)) == 2
        assert cpus(settings(replicas=9)) == 1
        assert cpus(settings(replicas=20)) == 1
        assert cpus(settings(replicas=2, address="auto")) == 1

    def test_gpus(self, launch, resources):
        gpus = launch.gpus_of_one
        assert gpus(settings(tp=2)) == 0
        assert gpus(settings(tp=2, device="cuda")) == 2
        resources["GPU"] = 1.0
        assert gpus(settings()) == 1
        assert gpus(settings(tp=2)) == 2
        assert gpus(settings(device="cpu")) == 0

    def test_all_have_to_fit(self, launch, resources, monkeypatch):
        resources |= {"CPU": 8.0, "GPU": 4.0}
        launch._check(settings(replicas=4, cpus=2))
        with pytest.raises(
            ValueError, match=r"4 replicas need 12 CPUs.* has 8;"
        ):
            launch._check(settings(replicas=4, cpus=3))
        with pytest.raises(
            ValueError, match=r"3 replicas need 6 GPUs.* has 4;"
        ):
            launch._check(settings(tp=2, replicas=3, cpus=1))
        launch._check(settings(device="cpu", replicas=8, cpus=1))
        guest = settings(replicas=1, cpus=1, address="auto")
        used = SimpleNamespace(proxies={})
        monkeypatch.setattr(launch.serve, "status", lambda: used, raising=False)
        launch._check(guest)
        used.proxies["node"] = "HEALTHY"
        with pytest.raises(ValueError, match="Ray Serve is in use"):
            launch._check(guest)
        launch._check(settings(replicas=1, cpus=1))


class TestRay:
    def test_one_of_our_own(self, launch, monkeypatch):
        calls = Calls()
        monkeypatch.setattr(launch.ray, "init", calls, raising=False)
        launch._init(settings(replicas=3, cpus=0.5), Path("folder"))
        [(args, kwargs)] = calls
        assert args == ("local",)
        assert kwargs["num_cpus"] == 2
        assert kwargs["include_dashboard"] is False
        assert kwargs["object_store_memory"] == 80 * 2**20
        assert kwargs["_temp_dir"] == "folder"

    def test_that_of_a_cluster(self, launch, monkeypatch):
        calls = Calls()
        monkeypatch.setattr(launch.ray, "init", calls, raising=False)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            place = f"127.0.0.1:{listener.getsockname()[1]}"
            launch._init(settings(address=place), None)
        launch._init(settings(address="auto"), None)
        assert [args for args, _ in calls] == [(place,), ("auto",)]
        with pytest.raises(ConnectionError, match=f"no Ray cluster at {place}"):
            launch._init(settings(address=place), None)

    @pytest.mark.parametrize(("length", "kept"), [(17, True), (18, False)])
    def test_its_sockets_have_short_paths(
        self, launch, monkeypatch, length, kept
    ):
        parent = "/" + "x" * (length - 1)
        calls = Calls("made")
        monkeypatch.setattr(launch.tempfile, "gettempdir", lambda: parent)
        monkeypatch.setattr(launch.tempfile, "mkdtemp", calls)
        assert launch._ray_folder() == Path("made")
        [(_, kwargs)] = calls
        assert kwargs["dir"] == (parent if kept else "/tmp")

    def test_what_is_read_from_the_environment(self, monkeypatch):
        monkeypatch.setattr(os, "environ", {"RAY_AUTH_MODE": "other"})
        command._prepare_own_ray()
        assert os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] == "0"
        assert os.environ["RAY_AUTH_MODE"] == "token"
        assert len(os.environ["RAY_AUTH_TOKEN"]) == 64
        assert ("RAY_worker_niceness", "0") in os.environ.items()


class TestTheEnd:
    def drain(self, launch, monkeypatch, lefts, seconds=30.0) -> Calls:
        clock = [0.0]
        monkeypatch.setattr(launch.time, "monotonic", lambda: clock[0])
        sleep = lambda t: clock.__setitem__(0, clock[0] + t)  # noqa: E731
        monkeypatch.setattr(launch.time, "sleep", sleep)
        close = Calls(*lefts)
        launch._drain(handle(close=close), seconds)
        return close

    def test_it_waits_for_answers(self, launch, monkeypatch, capsys):
        assert len(self.drain(launch, monkeypatch, [2, 2, 1, 0, 9])) == 4
        said = capsys.readouterr().out.splitlines()
        assert said == [
            "stopping after 2 more answers",
            "stopping after 1 more answers",
        ]

    def test_but_not_for_ever(self, launch, monkeypatch):
        assert 5 <= len(self.drain(launch, monkeypatch, [1] * 99, 1.0)) <= 7
        assert len(self.drain(launch, monkeypatch, [1] * 99, 0.0)) == 1

    def test_and_not_if_told_again(self, launch):
        def close() -> int:
            raise launch.Stopped

        launch._drain(handle(close=close), 30.0)

    @pytest.mark.parametrize(
        ("text", "line"),
        [
            ("one", "one"),
            ("trace\n  back\nRuntimeError: no weights\n\n", "no weights"),
            ("", "ValueError"),
        ],
    )
    def test_a_failure_is_one_line(self, launch, text, line):
        assert launch._last_line(ValueError(text)) == line

    @pytest.mark.parametrize(
        ("ends", "code"),
        [("Stopped", 0), (ValueError("no"), 1), (OSError("no"), 1)],
    )
    def test_exit_codes(self, launch, monkeypatch, capsys, ends, code):
        error = launch.Stopped() if ends == "Stopped" else ends

        @contextmanager
        def connected(args):
            yield args
            raise AssertionError

        def deploy(*_):
            raise error

        @contextmanager
        def served(args):
            yield "url"

        monkeypatch.setattr(launch, "_connected", connected)
        monkeypatch.setattr(launch, "_served", served)
        monkeypatch.setattr(launch, "gpus_of_one", lambda args: 0)
        monkeypatch.setattr(launch, "deploy", deploy)
        assert launch.run(settings(replicas=3)) == code
        out, err = capsys.readouterr()
        assert out == "loading 3 x m ...\n"
        assert err == ("error: no\n" if code else "")


class Server:
    """A stand-in for `ServerProcess`; `numbers` is an error if it is ill."""

    def __init__(self, args: ServerArgs) -> None:
        self.args, self.url = args, "http://h:1"
        self.numbers: object = {}
        self.stopped = False

    async def health(self):
        if isinstance(self.numbers, Exception):
            raise self.numbers
        return self.numbers

    async def stop(self) -> None:
        self.stopped = True


class Router:
    """A stand-in for the handle of a router; `replies` are its answers."""

    def __init__(self, *replies) -> None:
        self.beats: list[Beat] = []
        self.replies = [*replies]
        self.beat = SimpleNamespace(remote=self._beat)

    async def _beat(self, beat: Beat) -> int:
        self.beats.append(beat)
        reply = self.replies.pop(0) if self.replies else 0
        if isinstance(reply, Exception):
            raise reply
        return reply


@pytest.fixture
def replica(launch, monkeypatch):
    """Makes an `EngineReplica` with stand-ins; call it within a loop."""
    cluster = sys.modules["minisgl.deploy.cluster"]

    def make(router: Router):
        context = SimpleNamespace(replica_id=SimpleNamespace(unique_id="r0"))
        serve = SimpleNamespace(
            get_replica_context=lambda: context,
            get_deployment_handle=lambda *names: router,
        )
        monkeypatch.setattr(cluster, "serve", serve)
        monkeypatch.setattr(cluster, "ServerProcess", Server)
        monkeypatch.setattr(cluster, "PERIOD", 0.01)
        cluster.ray.util.get_node_ip_address = lambda: "10.0.0.9"
        return cluster.EngineReplica(settings().server)

    return make


class TestReplica:
    def test_it_beats_while_its_server_is_well(self, replica):
        async def scenario() -> None:
            router = Router()
            one = replica(router)
            assert one._server.args.server_host == "10.0.0.9"
            await asyncio.sleep(0.05)
            assert router.beats == []  # too busy to say how large it is
            one._server.numbers = {"total_pages": 100}
            await asyncio.sleep(0.1)
            assert len(router.beats) > 3
            assert {*router.beats} == {Beat("r0", "http://h:1", 400)}
            one.check_health()
            one._server.numbers = RuntimeError("ill")
            await asyncio.sleep(0.05)
            count = len(router.beats)
            await asyncio.sleep(0.05)
            assert len(router.beats) == count
            with pytest.raises(RuntimeError, match="ill"):
                one.check_health()
            one._server.numbers = {}
            await asyncio.sleep(0.05)
            one.check_health()
            assert len(router.beats) > count
            one._beating.cancel()

        asyncio.run(scenario())

    def test_it_drains_before_it_ends(self, replica):
        async def scenario() -> None:
            router = Router()
            one = replica(router)
            one._server.numbers = {"total_pages": 1}
            await asyncio.sleep(0.05)
            router.beats.clear()
            router.replies += [2, 1, 0]
            await one.__del__()
            assert len(router.beats) == 3
            assert all(beat.draining for beat in router.beats)
            assert one._server.stopped

        asyncio.run(scenario())

    def test_a_mistake_of_the_router_is_not_hidden(self, replica):
        async def scenario() -> None:
            one = replica(Router(NotImplementedError("x")))
            one._server.numbers = {"total_pages": 1}
            await asyncio.sleep(0.05)
            with pytest.raises(NotImplementedError):
                one.check_health()

        asyncio.run(scenario())


class TestDeploy:
    def deploy(self, monkeypatch, run, **changes) -> dict[str, dict]:
        cluster = sys.modules["minisgl.deploy.cluster"]
        made: dict[str, dict] = {}

        def deployment(kind, **options):
            made[options["name"]] = options
            bind = lambda *args: options.setdefault("args", args)  # noqa: E731
            return SimpleNamespace(bind=bind)

        status = SimpleNamespace(
            applications={
                "minisgl": SimpleNamespace(
                    deployments={"engine": SimpleNamespace(message="why")}
                )
            }
        )
        serve = SimpleNamespace(
            deployment=deployment, run=run, status=lambda: status
        )
        monkeypatch.setattr(cluster, "serve", serve)
        cluster.deploy(settings(replicas=3, cpus=2, drain=7.0, **changes), 4)
        return made

    def test_what_serve_is_told(self, launch, monkeypatch):
        run = Calls()
        made = self.deploy(monkeypatch, run, policy="random")
        engine, router = made["engine"], made["router"]
        assert engine["num_replicas"] == 3
        assert engine["ray_actor_options"] == {"num_cpus": 2, "num_gpus": 4}
        assert engine["max_constructor_retry_count"] == 1
        assert router["ray_actor_options"] == {"num_cpus": 0}
        assert router["max_ongoing_requests"] >= 10_000
        for options in (engine, router):
            assert options["graceful_shutdown_timeout_s"] == 17.0
            assert options["graceful_shutdown_wait_loop_s"] == 0.1
        assert engine["health_check_period_s"] == 1.0
        [server] = engine["args"]
        assert (server.server_port, server.model_path) == (0, "m")
        assert router["args"] == ("random", "", engine["args"])
        [(_, kwargs)] = run
        assert kwargs["name"] == "minisgl"
        assert kwargs["logging_config"] == {
            "log_level": "WARNING",
            "enable_access_log": False,
        }

    def test_a_failure_has_its_reason(self, launch, monkeypatch):
        def run(*_, **__):
            raise RuntimeError("Failed to update the deployments ['engine'].")

        with pytest.raises(RuntimeError, match=r"^why$"):
            self.deploy(monkeypatch, run)


def test_the_simulation_is_that_of_the_page():
    policies = {name: POLICIES[name] for name in POLICIES.supported_names()}
    report = compare(policies, [1, 3], 240.0, Traffic(), Machine())
    assert [tuple(row.values()) for row in report.rows] == RECORDED


def test_zero_seconds_and_half_a_cpu_are_allowed():
    assert settings(drain=0, cpus=0.5).drain == 0
    assert settings(address="h:1").address == "h:1"
