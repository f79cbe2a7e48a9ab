"""The router: what it passes on, and what happens when a replica does not answer."""

import asyncio
import gzip
import json
import time

import aiohttp
import pytest

from minisgl.deploy.blocks import Blocks
from minisgl.deploy.policy import LeastLoadedPolicy
from tests.replicas import CUT, Scene, play

EVENT = b'data: {"n": %d}\n\n'
DONE = b"data: [DONE]\n\n"


def test_a_request_arrives_as_it_was_sent():
    async def scenario(scene: Scene) -> None:
        url = f"{scene.url}/v1/models/a%2Fb%20c?x=1&y=%C3%A9"
        headers = {"authorization": "Bearer k", "te": "trailers", "x-more": "1"}
        async with scene.session.get(url, headers=headers) as answer:
            assert answer.status == 200
            text = await answer.text()
            assert text.endswith(": /v1/models/a%2Fb%20c?x=1&y=%C3%A9")
            assert answer.headers["x-minisgl-replica"] == text[:2]
        [(method, _, got, body)] = scene.fakes[int(text[1])].asked
        assert (method, body) == ("GET", b"")
        assert got["authorization"] == "Bearer k"
        assert got["x-more"] == "1"
        assert "te" not in got
        assert got["host"] == scene.fakes[int(text[1])].url[len("http://") :]

    play(scenario)


def test_a_packed_answer_stays_packed():
    async def scenario(scene: Scene) -> None:
        for fake in scene.fakes:
            fake.packed = gzip.compress(b"hello" * 99)
        url = f"{scene.url}/packed"
        async with scene.session.get(url) as answer:
            assert answer.headers["content-encoding"] == "gzip"
            assert await answer.read() == b"hello" * 99

    play(scenario)


def test_what_a_replica_refuses_is_refused():
    async def scenario(scene: Scene) -> None:
        for status in (400, 401, 404, 413, 500):
            for fake in scene.fakes:
                fake.status = status
            got, _, content = await scene.post(prompt="x")
            assert got == status
            assert b"says r" in content
        assert sum(len(fake.asked) for fake in scene.fakes) == 5  # none twice

    play(scenario)


def test_a_body_that_is_too_large_goes_nowhere():
    async def scenario(scene: Scene) -> None:
        status, _, content = await scene.post(prompt="x" * 5 * 2**20)
        assert status == 413
        assert b"bytes" in content
        assert not any(fake.asked for fake in scene.fakes)

    play(scenario)


def test_a_stream_comes_event_by_event():
    async def scenario(scene: Scene) -> None:
        async with asyncio.TaskGroup() as group:

            async def read() -> None:
                async with scene.stream() as answer:
                    assert answer.content_type == "text/event-stream"
                    for n in range(3):
                        event = await answer.content.readuntil(b"\n\n")
                        assert event == EVENT % n
                        seen.set()
                    assert await answer.content.read() == DONE

            seen, reading = asyncio.Event(), group.create_task(read())
            fake = await scene.busy()
            for n in range(3):
                await fake.pieces.put(EVENT % n)
                await seen.wait()  # before the next one is made
                seen.clear()
            await fake.pieces.put(DONE)
            await fake.pieces.put(b"")
            await reading
        while scene.forwarder.active:
            await asyncio.sleep(0.01)
        assert scene.fleet.replicas[fake.name].in_flight == 0

    play(scenario)


def test_who_cannot_be_reached_is_not_asked_again_until_it_beats():
    async def scenario(scene: Scene) -> None:
        dead, alive = scene.fakes
        await dead.stop()
        await alive.pieces.put(b"{}")
        await alive.pieces.put(b"")
        # Somebody is at the other one, so that this one is tried first.
        scene.fleet.replicas[alive.name].in_flight += 1
        status, headers, content = await scene.post(prompt="x")
        assert (status, content) == (200, b"{}")
        assert headers["x-minisgl-replica"] == alive.name
        assert not scene.fleet.replicas[dead.name].is_open
        scene.fleet.beat(dead.beat())
        assert scene.fleet.replicas[dead.name].is_open

    play(scenario)


@pytest.mark.parametrize("stream", [True, False])
def test_a_request_moves_on_if_its_replica_dies_before_the_first_token(stream):
    async def scenario(scene: Scene) -> None:
        more = {"stream": True} if stream else {}
        asking = asyncio.create_task(scene.post(prompt="x", **more))
        first = await scene.busy()
        await first.pieces.put(CUT)
        [second] = [fake for fake in scene.fakes if fake is not first]
        answer = (EVENT % 1 + DONE) if stream else b'{"a": 1}'
        await second.pieces.put(answer)
        await second.pieces.put(b"")
        status, headers, content = await asking
        assert (status, content) == (200, answer)
        assert headers["x-minisgl-replica"] == second.name
        assert len(first.asked) == len(second.asked) == 1

    play(scenario)


def test_a_request_does_not_take_all_replicas_along():
    async def scenario(scene: Scene) -> None:
        for fake in scene.fakes:
            await fake.pieces.put(CUT)
        status, _, content = await scene.post(prompt="x")
        assert status == 503
        assert b"is gone" in content
        assert sum(len(fake.asked) for fake in scene.fakes) == 2
        # Who could not be reached, or refused, has not died of it.
        for fake in scene.fakes:
            scene.fleet.beat(fake.beat())
            fake.status = 503
        status, _, content = await scene.post(prompt="x")
        assert (status, b"try again" in content) == (503, True)
        assert sum(len(fake.asked) for fake in scene.fakes) == 2 + 4

    play(scenario, count=4)


def test_a_client_that_goes_while_it_asks_is_no_fault():
    async def scenario(scene: Scene) -> None:
        async def receive() -> dict[str, str]:
            return {"type": "http.disconnect"}

        scope = {"type": "http", "method": "POST", "headers": []}
        await scene.forwarder(scope, receive, receive)
        assert scene.forwarder.active == 0
        assert not any(fake.asked for fake in scene.fakes)

    play(scenario)


def test_an_answer_that_is_cut_short_is_begun_anew_if_nothing_was_shown():
    async def scenario(scene: Scene) -> None:
        asking = asyncio.create_task(scene.post(prompt="x"))
        first = await scene.busy()
        await first.pieces.put(b'{"half": ')
        await first.pieces.put(CUT)
        [second] = [fake for fake in scene.fakes if fake is not first]
        await second.pieces.put(b'{"whole": 1}')
        await second.pieces.put(b"")
        _, _, content = await asking
        assert content == b'{"whole": 1}'

    play(scenario)


def test_a_stream_that_has_begun_ends_with_an_error():
    async def begun(scene: Scene) -> None:
        asking = asyncio.create_task(scene.post(prompt="x", stream=True))
        fake = await scene.busy()
        await fake.pieces.put(EVENT % 1 + b'data: {"half')
        await asyncio.sleep(0.05)
        await fake.pieces.put(CUT)
        status, _, content = await asking
        first, error, last, rest = content.split(b"\n\n")
        assert status == 200
        assert first + b"\n\n" == EVENT % 1
        shown = json.loads(error.removeprefix(b"data: "))["error"]
        assert shown["type"] == "server_error"
        assert "ask again" in shown["message"]
        assert last + b"\n\n" == DONE
        assert rest == b""
        assert sum(len(fake.asked) for fake in scene.fakes) == 1

    play(begun)


def test_who_says_503_is_passed_over():
    async def scenario(scene: Scene) -> None:
        scene.fakes[0].status = 503
        scene.fleet.replicas["r1"].in_flight += 1
        await scene.fakes[1].pieces.put(b"{}")
        await scene.fakes[1].pieces.put(b"")
        status, headers, _ = await scene.post(prompt="x")
        assert (status, headers["x-minisgl-replica"]) == (200, "r1")
        scene.fleet.beat(scene.fakes[0].beat())
        scene.fakes[1].status = 503
        status, headers, content = await scene.post(prompt="x")
        assert status == 503
        assert headers["retry-after"] == "2"
        assert json.loads(content)["error"]["type"] == "server_error"
        assert [len(fake.asked) for fake in scene.fakes] == [2, 2]

    play(scenario)


def test_who_hangs_loses_its_requests_when_its_lease_ends():
    async def hangs(scene: Scene) -> None:
        hanging, well = scene.fakes

        async def beats() -> None:
            while True:
                scene.fleet.beat(well.beat())
                await asyncio.sleep(0.05)

        beating = asyncio.create_task(beats())
        scene.fleet.replicas[well.name].in_flight += 9
        begun = asyncio.create_task(scene.post(prompt="x", stream=True))
        await scene.busy()
        await hanging.pieces.put(EVENT % 1)
        while not hanging.pieces.empty():
            await asyncio.sleep(0.01)
        waiting = asyncio.create_task(scene.post(prompt="x", stream=True))
        await well.pieces.put(EVENT % 2)
        await well.pieces.put(b"")
        start = time.monotonic()
        _, headers, content = await waiting
        assert (headers["x-minisgl-replica"], content) == ("r1", EVENT % 2)
        _, _, content = await begun
        assert content.startswith(EVENT % 1)
        assert b"ask again" in content
        assert 0.2 < time.monotonic() - start < 3
        assert [*scene.fleet.replicas] == ["r1"]
        beating.cancel()

    play(hangs, lease=0.5)


def test_who_drains_gets_nothing_new_and_leaves_when_it_is_done():
    async def scenario(scene: Scene) -> None:
        asking = asyncio.create_task(scene.post(prompt="x", stream=True))
        fake = await scene.busy()
        leaving = fake.beat(draining=True)
        assert scene.fleet.beat(leaving) == 1
        # Of the two it has less to do.
        [other] = (f for f in scene.fakes if f is not fake)
        scene.fleet.replicas[other.name].in_flight += 2
        for _ in range(4):
            async with scene.session.get(f"{scene.url}/v1/models") as answer:
                assert answer.headers["x-minisgl-replica"] == other.name
        scene.fleet.replicas[other.name].in_flight -= 2
        await fake.pieces.put(EVENT % 1)
        await fake.pieces.put(DONE)
        await fake.pieces.put(b"")
        _, _, content = await asking
        assert content == EVENT % 1 + DONE
        assert scene.fleet.beat(leaving) == 0
        assert fake.name not in scene.fleet.replicas

    play(scenario)


@pytest.mark.parametrize("begun", [True, False])
def test_a_client_that_goes_takes_its_request_along(begun):
    async def scenario(scene: Scene) -> None:
        async def ask() -> None:
            async with scene.stream() as answer:
                await answer.content.readany()
                seen.set()
                await answer.content.readany()

        seen, asking = asyncio.Event(), asyncio.create_task(ask())
        fake = await scene.busy()
        if begun:
            await fake.pieces.put(EVENT % 1)
            await seen.wait()
        while not fake.asked:
            await asyncio.sleep(0.01)
        asking.cancel()
        await asyncio.wait_for(fake.left.wait(), 3)
        while scene.forwarder.active:
            await asyncio.sleep(0.01)
        assert scene.fleet.replicas[fake.name].in_flight == 0
        assert sum(len(fake.asked) for fake in scene.fakes) == 1

    play(scenario)


def test_health_names_the_replicas():
    async def scenario(scene: Scene) -> None:
        async with scene.session.get(f"{scene.url}/health") as answer:
            found = await answer.json()
        assert answer.status == 200
        assert [*found["replicas"]] == ["r0", "r1"]
        assert found["replicas"]["r0"] == {
            "url": scene.fakes[0].url,
            "in_flight": 0,
            "open": True,
            "draining": False,
        }
        for fake in scene.fakes:
            scene.fleet.beat(fake.beat(draining=True))
        async with scene.session.get(f"{scene.url}/health") as answer:
            assert answer.status == 503
        async with scene.session.get(f"{scene.url}/metrics") as answer:
            assert answer.status == 404
            assert "/health" in (await answer.json())["error"]["message"]

    play(scenario)


def test_it_may_lie_below_a_path():
    async def scenario(scene: Scene) -> None:
        for path in ("/health", "/llm/health"):
            async with scene.session.get(scene.url + path) as answer:
                assert "replicas" in await answer.json()
        async with scene.session.get(f"{scene.url}/llm/v1/models") as answer:
            assert (await answer.text()).endswith(": /llm/v1/models")

    play(scenario, root_path="/llm")


def test_the_policy_sees_loads_blocks_and_rooms():
    class Watched(LeastLoadedPolicy):
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[object] = []

        def join(self, name: str, capacity: int) -> None:
            self.seen.append(("join", name, capacity))

        def leave(self, name: str) -> None:
            self.seen.append(("leave", name))

        def choose(self, blocks: Blocks, loads: dict[str, int]) -> str:
            self.seen.append((len(blocks), {**loads}))
            return super().choose(blocks, loads)

    policy = Watched()

    async def scenario(scene: Scene) -> None:
        scene.fleet.replicas["r0"].in_flight = 2
        for _ in range(2):
            await scene.fakes[1].pieces.put(b"{}")
            await scene.fakes[1].pieces.put(b"")
            await scene.post(prompt="x" * 640)
        scene.fleet.replicas["r0"].in_flight = 0
        scene.fleet.beat(scene.fakes[0].beat(draining=True))

    play(scenario, policy=policy)
    loads = {"r0": 2, "r1": 0}
    joins = [("join", name, 1000) for name in loads]
    asked = (10, loads)
    assert policy.seen == [*joins, asked, asked, ("leave", "r0")]


def test_a_client_of_openai_sees_no_difference():
    openai = pytest.importorskip("openai")

    async def scenario(scene: Scene) -> None:
        url = f"{scene.url}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="k") as client:
            for fake in scene.fakes:
                fake.status = 404
            with pytest.raises(openai.NotFoundError, match="says r"):
                await client.completions.create(model="m", prompt="x")

    play(scenario)


def test_nothing_is_left_open():
    async def scenario(scene: Scene) -> None:
        async with scene.session.get(f"{scene.url}/v1/models") as answer:
            await answer.read()
        await scene.forwarder.close()
        session = scene.forwarder._session
        assert isinstance(session, aiohttp.ClientSession)
        assert session.closed

    play(scenario)
