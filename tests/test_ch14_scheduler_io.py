"""Chapter 14: a scheduler that is reached through queues."""

import logging
import os
import pickle
import signal
import stat
import tempfile
import threading
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import msgpack
import pytest
import torch

from minisgl.distributed import DistributedInfo
from minisgl.llm import LLM
from minisgl.message import (
    AbortBackendMsg,
    BaseBackendMsg,
    BatchBackendMsg,
    BatchTokenizerMsg,
    DetokenizeMsg,
    ExitMsg,
)
from minisgl.scheduler import Scheduler, SchedulerConfig
from minisgl.scheduler.addresses import make_socket_dir, remove_socket_dir
from minisgl.scheduler.idle import IdleCheck
from minisgl.scheduler.io import SchedulerIOMixin
from minisgl.utils import ZmqPullQueue, ZmqPushQueue
from tests.driver import REFUSED, solo
from tests.parity import assert_parity, model_under_test, prompts
from tests.serving import Client, Server, config_for, user_msg

FOLDER = model_under_test("qwen3-tiny")
PROMPTS = prompts(FOLDER)
GOODBYE = "the server is shutting down"
OVERLAP = pytest.mark.parametrize("overlap", [True, False], ids=["on", "off"])
SECONDS = 300


@pytest.fixture(autouse=True)
def no_hang():
    """A wait for ever fails its test instead."""

    def late(*args):
        raise TimeoutError(f"the test took more than {SECONDS} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


# ------------------------------------------------------------ in a process


class Servers:
    """Two schedulers, with overlap and without; another for one that ended."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.made = folder, []
        self.running: dict[bool, Server] = {}
        self.broken = ""

    def get(self, overlap: bool) -> Server:
        assert not self.broken, self.broken
        try:
            for each in (True, False):
                if each not in self.running:
                    self.running[each] = self._start(each)
            server = self.running[overlap]
            if not hasattr(server, "ack"):
                server.wait_until_ready()
        except AssertionError as error:
            self.broken = str(error)
            raise
        server.forget()
        return server

    def _start(self, overlap: bool) -> Server:
        config = config_for(
            FOLDER,
            overlap=overlap,
            max_running_req=4,
            max_extend_tokens=32,
            page_size=4,
            num_page_override=1000,
        )
        log = self.folder / f"{len(self.made)}.log"
        self.made.append(Server(config, log))
        return self.made[-1]

    def stop(self) -> None:
        for server in self.made:
            server.stop()


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    servers = Servers(tmp_path_factory.mktemp("logs"))
    yield servers
    servers.stop()


@pytest.fixture(params=[True, False], ids=["on", "off"])
def server(request, servers):
    """A scheduler process; it may not have lost a page in any test."""
    server = servers.get(request.param)
    yield server
    assert "books are wrong" not in server.child.said()
    if not server.child.process.is_alive():
        del servers.running[request.param]


def assert_answers(client: Client, lengths: dict[int, int]) -> None:
    """Request `uid` has prompt number `uid`, and answered in full."""
    for uid, length in lengths.items():
        expected = solo(FOLDER, PROMPTS[uid % len(PROMPTS)], length)
        assert_parity(client.answers[uid], expected)
        assert client.ended[uid].finish_reason == "length"


def submit(client: Client, lengths: dict[int, int]) -> None:
    for uid, length in lengths.items():
        client.submit(uid, PROMPTS[uid % len(PROMPTS)], length)


@pytest.mark.parity
def test_parity_of_requests_that_arrive_while_others_run(server):
    lengths = {0: 30, 1: 24, 2: 1, 3: 9, 4: 16, 5: 12}
    for uid, length in lengths.items():
        submit(server, {uid: length})
        if uid < 4:  # the last two come in one go
            server.tokens(uid, 1)
    server.collect(*lengths)
    assert_answers(server, lengths)
    assert server.ack == "the scheduler is ready"


def test_a_batch_of_messages_in_one(server):
    ask = [user_msg(uid, PROMPTS[uid], 6) for uid in (1, 2, 3)]
    server.send(BatchBackendMsg([ask[0], BatchBackendMsg(ask[1:])]))
    server.send(BatchBackendMsg([]))
    server.collect(1, 2, 3)
    assert_answers(server, {1: 6, 2: 6, 3: 6})


def test_the_tokens_of_a_step_are_one_message(server):
    ask = [user_msg(uid, PROMPTS[uid], 40) for uid in (0, 1, 2)]
    server.send(BatchBackendMsg(ask))
    server.collect(0, 1, 2)
    sizes = [
        len(msg.data) if isinstance(msg, BatchTokenizerMsg) else 1
        for msg in server.messages
    ]
    assert sum(sizes) == 120 and sizes.count(3) > 20
    batches = [m for m in server.messages if isinstance(m, BatchTokenizerMsg)]
    assert all(len(batch.data) > 1 for batch in batches)


def test_an_abort_ends_a_request_without_a_word(server):
    long = 2000
    server.submit(0, PROMPTS[0], long)  # runs
    server.tokens(0, 3)
    for uid in (10, 11, 12, 13):  # 13 has to wait for a row
        server.submit(uid, PROMPTS[1], 20)
    for uid in (0, 0, 13, 999):
        server.abort(uid)
    server.collect(10, 11, 12)
    submit(server, {2: 5})
    server.collect(2)
    assert_answers(server, {2: 5})
    assert len(server.answers[0]) < long and 0 not in server.ended
    assert 13 not in server.answers


def test_after_aborts_the_whole_pool_is_there(server):
    for uid in range(4):
        server.submit(uid, PROMPTS[uid], 900)
        server.tokens(uid, 1)
        server.abort(uid)
    # One that may need every page is let in only if every page is there.
    server.submit(5, PROMPTS[1], 4000 - len(PROMPTS[1]))
    server.tokens(5, 2)
    server.abort(5)
    submit(server, {6: 3})
    server.collect(6)
    assert_answers(server, {6: 3})


def bad_messages() -> list[bytes]:
    odd = user_msg(7, PROMPTS[0], 5).encoder()
    odd["sampling_params"]["top_p"] = 1.5
    no_array = user_msg(7, PROMPTS[0], 5).encoder()
    no_array["input_ids"]["__array__"][1] = [-1]
    reply = {"__type__": "DetokenizeMsg", "uid": 7, "next_token": 1}
    content = [odd, no_array, reply, {}, 5, [odd]]
    return [b"", b"\xc1", *map(msgpack.packb, content)]


def test_what_is_no_message_is_left_out_and_the_next_one_works(server):
    before = server.child.said().count("a message is left out: ")
    submit(server, {0: 30})
    server.tokens(0, 2)
    for raw in bad_messages():  # beside a request that runs
        server.requests.put_raw(raw)
    submit(server, {1: 10})
    server.collect(0, 1)
    for raw in bad_messages():  # and to one that waits
        time.sleep(0.02)
        server.requests.put_raw(raw)
    submit(server, {2: 5})
    server.collect(2)
    assert_answers(server, {0: 30, 1: 10, 2: 5})
    said = server.child.said()
    assert said.count("a message is left out: ") == before + 16
    assert "top_p must be" in said


def test_a_request_that_can_never_run_is_refused(server):
    server.submit(0, [])
    server.submit(1, [3] * 10_000)
    server.submit(2, [3, 10**6])
    server.collect(0, 1, 2)
    assert all(m.finish_reason in REFUSED for m in server.ended.values())
    assert "the prompt is empty" in server.ended[0].error
    assert not any(server.answers.values())


def cpu_seconds(pid: int) -> float:
    """CPU time of a process with all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no /proc")
def test_a_scheduler_that_waits_uses_no_cpu_time(server):
    submit(server, {0: 10})
    server.collect(0)
    time.sleep(0.3)
    before = cpu_seconds(server.child.process.pid)
    time.sleep(1.0)
    assert cpu_seconds(server.child.process.pid) - before <= 0.03


def test_ctrl_c_is_for_the_parent(server):
    os.kill(server.child.process.pid, signal.SIGINT)
    submit(server, {0: 10})
    server.collect(0)
    os.kill(server.child.process.pid, signal.SIGINT)
    submit(server, {1: 5})
    server.collect(1)
    assert_answers(server, {0: 10, 1: 5})


def test_two_schedulers_at_once_do_not_hear_each_other(servers):
    one, other = servers.get(True), servers.get(False)
    assert one.config.socket_dir != other.config.socket_dir
    lengths = {0: 20, 1: 12, 2: 8}, {0: 8, 3: 12, 4: 20}
    for uid in range(5):
        for client, wanted in zip((one, other), lengths, strict=True):
            if uid in wanted:
                submit(client, {uid: wanted[uid]})
    for client, wanted in zip((one, other), lengths, strict=True):
        client.collect(*wanted)
        assert client.answers.keys() == wanted.keys()
        assert_answers(client, wanted)


def test_exit_answers_everybody_and_leaves_no_file(server):
    folder = server.config.socket_dir
    assert sorted(p.name for p in folder.iterdir()) == [
        "backend",
        "detokenizer",
    ]
    server.submit(0, PROMPTS[0], 1000)
    server.submit(1, PROMPTS[1], 1000)
    server.tokens(0, 3)
    server.submit(2, [*range(300)], 10)  # a prompt of ten chunks
    server.submit(3, PROMPTS[3], 100)  # behind it
    server.submit(4, PROMPTS[4], 200)  # has no row
    assert server.exit(0, 1, 2, 3, 4) == 0
    for msg in server.ended.values():
        assert (msg.finish_reason, msg.error) == ("error", GOODBYE)
        assert msg.next_token == -1
    for uid in (0, 1):
        expected = solo(FOLDER, PROMPTS[uid], len(server.answers[uid]))
        assert_parity(server.answers[uid], expected)
    assert [*folder.iterdir()] == []
    assert "Traceback" not in server.child.said()


def test_exit_while_nothing_runs(server):
    assert server.exit() == 0
    assert not server.ended and [*server.config.socket_dir.iterdir()] == []


def test_a_killed_scheduler_leaves_only_what_remove_socket_dir_removes(server):
    beside = server.config.socket_dir.parent
    before = {p.name for p in beside.glob("minisgl-*")}
    submit(server, {0: 100})
    server.tokens(0, 1)
    server.child.kill()
    assert server.child.process.exitcode == -signal.SIGKILL
    folder = server.config.socket_dir
    assert {p.name for p in folder.iterdir()} == {"backend", "detokenizer"}
    remove_socket_dir(server.config)
    after = {p.name for p in beside.glob("minisgl-*")}
    assert before - after == {folder.name}
    remove_socket_dir(server.config)  # again: nothing


# --------------------------------------------------- in this very process


@pytest.fixture
def config():
    """A configuration with its folder; the folder goes with the test."""
    config = config_for(FOLDER)
    make_socket_dir(config)
    yield config
    remove_socket_dir(config)


@pytest.fixture
def client(config):
    client = Client(config)
    yield client
    client.stop()


class Counting(SchedulerIOMixin):
    """Notes how often it was idle; `when_idle` makes a message come then."""

    def __init__(self, config, group=None):
        self.idle, self.when_idle = 0, lambda: None
        super().__init__(config, group)

    def run_when_idle(self):
        self.idle += 1
        self.when_idle()


@pytest.fixture
def io(config, client):
    made = Counting(config)
    yield made
    made.close_queues()


def test_receiving_without_blocking_takes_what_is_here(io, client):
    assert io.receive_msg() == [] and io.receive_msg(False) == []
    for uid in range(50):
        client.abort(uid)
    got = []
    while len(got) < 50:
        got += io.receive_msg()
    assert got == [AbortBackendMsg(uid) for uid in range(50)]
    assert io.receive_msg() == [] and io.idle == 0


def test_blocking_takes_all_that_is_here(io, client):
    for pause in (0.1, 1.0, 10.0):  # on a busy machine messages take a while
        for uid in range(5):
            client.abort(uid)
        time.sleep(pause)
        io.idle = 0
        got = io.receive_msg(True)
        if len(got) == 5 and io.idle == 0:
            break
        while len(got) < 5:
            got += io.receive_msg()
    else:
        raise AssertionError("it never took all five without being idle")
    assert got == [AbortBackendMsg(uid) for uid in range(5)]


def test_run_when_idle_is_called_once_before_it_waits(io, client):
    late = threading.Timer(20, client.send, [ExitMsg()])
    late.start()
    for uid in range(3):
        io.when_idle = lambda uid=uid: client.abort(uid)
        assert io.receive_msg(blocking=True) == [AbortBackendMsg(uid)]
        assert io.idle == uid + 1
    late.cancel()


def test_a_bad_message_ends_the_wait_with_nothing(io, client):
    io.when_idle = lambda: client.requests.put_raw(b"\xc1")
    assert io.receive_msg(blocking=True) == []
    for raw in (b"\x01", msgpack.packb(ExitMsg().encoder())) * 2:
        client.requests.put_raw(raw)
    got = []
    while len(got) < 2:
        got += io.receive_msg()
    assert got == [ExitMsg(), ExitMsg()]


def test_replies_of_a_step(io, client):
    one, two = DetokenizeMsg(1, 5, False), DetokenizeMsg(2, 6, True, "stop")
    for reply in ([], [one], [one, two], []):
        io.send_result(reply)
    assert client.replies.get() == one
    assert client.replies.get() == BatchTokenizerMsg([one, two])
    time.sleep(0.05)
    assert client.replies.empty()


def test_one_rank_syncs_at_once_without_a_group(io):
    io.sync_all_ranks()


def test_offline_there_are_lists_and_nothing_else(config):
    io = Counting(replace(config, offline_mode=True))
    io.inbox.append(ExitMsg())
    assert io.receive_msg(blocking=True) == [ExitMsg()]
    assert io.receive_msg() == [] and io.idle == 0
    reply = [DetokenizeMsg(1, 5, False)]
    io.send_result(reply)
    assert io.outbox == reply
    assert [*config.socket_dir.iterdir()] == []
    io.sync_all_ranks()
    io.close_queues()


def test_offline_is_what_an_llm_is():
    llm = LLM(str(FOLDER), "float32", device="cpu", num_page_override=64)
    assert llm.config.offline_mode and llm.inbox == []
    assert not llm.config.socket_dir.exists()


def test_online_is_what_a_scheduler_is_unless_told(config, client):
    assert config.offline_mode is False
    io = Counting(config)
    assert not hasattr(io, "inbox") and not hasattr(io, "outbox")
    io.close_queues()


def test_the_detokenizer_may_create_the_link(config):
    class Shared(SchedulerConfig):
        backend_create_detokenizer_link = False

    shared = Shared(
        config.model_path,
        config.tp_info,
        "float32",
        _unique_suffix=config._unique_suffix,
    )
    io = Counting(shared)
    io.send_result([DetokenizeMsg(1, 5, False)])  # nobody is there yet
    client = Client(shared)
    client.take()
    assert client.answers == {1: [5]}
    io.close_queues()
    assert [p.name for p in config.socket_dir.iterdir()] == ["detokenizer"]
    client.stop()


def test_the_folder_may_be_gone_before_the_queues_are_closed(config):
    io = Counting(config)
    remove_socket_dir(config)
    io.close_queues()


def test_without_its_folder_it_does_not_start():
    config = config_for(FOLDER)
    with pytest.raises(
        FileNotFoundError, match=r"minisgl-\S+ is not there; make_socket_dir"
    ) as found:
        Counting(config)
    assert "\n" not in str(found.value)


# A whole scheduler in this process: what it is sent before the loop begins, it
# finds; what it sends is read afterwards.


@OVERLAP
def test_the_loop_ends_with_the_step_in_which_exit_comes(
    config, client, overlap
):
    scheduler = Scheduler(replace(config, overlap=overlap, max_running_req=1))
    one = user_msg(0, PROMPTS[0], 1)  # its only token is made in that step
    many, late = user_msg(1, PROMPTS[1], 5), user_msg(2, PROMPTS[2], 5)
    client.send(BatchBackendMsg([one, many, ExitMsg(), late]))
    scheduler.run_forever()
    scheduler.shutdown()
    while len(client.ended) < 3:
        client.take()
    assert_answers(client, {0: 1})
    assert client.answers == {0: client.answers[0], 1: [], 2: []}
    assert [client.ended[uid].error for uid in (1, 2)] == [GOODBYE] * 2
    assert scheduler.stopped and [*config.socket_dir.iterdir()] == []


def test_wrong_books_are_logged_and_the_loop_goes_on(config, client, caplog):
    logger = logging.getLogger("idle")
    logger.addHandler(caplog.handler)
    scheduler = Scheduler(config)
    manager = scheduler.cache_manager
    manager.free_pages = torch.cat([manager.free_pages, manager.free_pages[:1]])

    def talk():
        for _ in range(3000):
            if "the books are wrong: pages do not add up" in caplog.text:
                break
            time.sleep(0.01)
        else:
            return
        client.submit(0, PROMPTS[0], 5)
        while 0 not in client.ended:
            client.take()
        client.send(ExitMsg())

    talker = threading.Thread(target=talk, daemon=True)
    talker.start()
    scheduler.run_forever()
    scheduler.shutdown()
    talker.join()
    logger.removeHandler(caplog.handler)
    assert_answers(client, {0: 5})


def test_a_check_takes_at_most_a_hundredth_of_the_time(monkeypatch):
    now, ran = [50.0], []
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def check():
        ran.append(now[0])
        now[0] += 0.2

    idle = IdleCheck()
    for _ in range(5000):
        idle.run(check)
        now[0] += 0.01
    gaps = [b - a for a, b in pairwise(ran)]
    assert ran[0] == 50.0 and len(ran) == 3
    assert all(20.0 < gap < 20.5 for gap in gaps)


def test_only_a_runtime_error_is_an_error_of_the_books():
    def check():
        raise KeyError

    with pytest.raises(KeyError):
        IdleCheck().run(check)


# ------------------------------------------------------------ addresses


def addresses(config: SchedulerConfig) -> list[str]:
    return [
        config.zmq_backend_addr,
        config.zmq_detokenizer_addr,
        config.zmq_scheduler_broadcast_addr,
    ]


def test_every_start_has_addresses_of_its_own():
    one, other = config_for(FOLDER), config_for(FOLDER)
    assert len({*addresses(one), *addresses(other)}) == 6
    assert f"minisgl-{os.getpid()}-" in one.zmq_backend_addr
    for same in (
        replace(one, tp_info=DistributedInfo(1, 2)),
        pickle.loads(pickle.dumps(one)),
    ):
        assert addresses(same) == addresses(one)
    for addr in addresses(one):
        assert Path(addr.removeprefix("ipc://")).parent == one.socket_dir


def test_the_folder_is_private_and_made_once(config):
    assert stat.S_IMODE(config.socket_dir.stat().st_mode) == 0o700
    with pytest.raises(FileExistsError):
        make_socket_dir(config)
    (config.socket_dir / "left").write_text("by a process that was killed")
    remove_socket_dir(config)
    assert not config.socket_dir.exists()
    remove_socket_dir(config)


@pytest.fixture
def temporary(monkeypatch, tmp_path_factory):
    """Sets where temporary files go: a folder whose socket_dir has `length` bytes."""

    def set_folder(length: int, letter: str = "x") -> Path:
        base = tmp_path_factory.mktemp("t")
        name = config_for(FOLDER).socket_dir.name
        left = length - len(os.fsencode(base)) - len("/") - len(f"/{name}")
        assert left > 0
        wide = len(letter.encode())
        folder = base / (letter * (left // wide) + "x" * (left % wide))
        folder.mkdir()
        monkeypatch.setenv("TMPDIR", str(folder))
        monkeypatch.setattr(tempfile, "tempdir", None)
        return folder

    yield set_folder


@pytest.mark.parametrize("letter", ["x", "é"])
def test_the_longest_path_that_fits_is_used(temporary, letter):
    longest = 107 - len("/scheduler_broadcast")
    folder = temporary(longest, letter)
    config = config_for(FOLDER)
    assert config.socket_dir.parent == folder
    assert len(os.fsencode(config.socket_dir)) == longest
    make_socket_dir(config)
    for addr in addresses(config):
        pull = ZmqPullQueue(addr, True, BaseBackendMsg.decoder)
        push = ZmqPushQueue(addr, False, BaseBackendMsg.encoder)
        push.put(ExitMsg())
        assert pull.get() == ExitMsg()
        push.stop()
        pull.stop()
    remove_socket_dir(config)


@pytest.mark.parametrize("more", [1, 300])
def test_a_longer_path_gives_way_to_tmp(temporary, more):
    folder = temporary(108 - len("/scheduler_broadcast"))
    if more > 1:
        for _ in range(3):
            folder = folder / ("y" * 100)
            folder.mkdir()
        os.environ["TMPDIR"], tempfile.tempdir = str(folder), None
    config = config_for(FOLDER)
    assert config.socket_dir.parent == Path("/", "tmp")
    make_socket_dir(config)
    client, io = Client(config), Counting(config)
    client.send(ExitMsg())
    assert io.receive_msg(True) == [ExitMsg()]
    io.close_queues()
    client.stop()
    remove_socket_dir(config)
