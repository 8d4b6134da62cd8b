"""Control on a real broker: everybody sees the same, and of conflicting decisions one holds."""

import asyncio
import contextlib
import uuid
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from lmerge_service.config.topology import Topology
from lmerge_service.errors import ConfigurationError, TransportError
from lmerge_service.http.api import routes
from lmerge_service.kafka.connection import Connection
from lmerge_service.kafka.log import Log
from lmerge_service.local.broker import LocalBroker
from lmerge_service.merge.decisions.control_log import LoggedControl
from lmerge_service.merge.decisions.ledger import Entry
from lmerge_service.merge.decisions.records import (
    AcceptGap,
    Detach,
    Quarantine,
    Release,
    decide,
    encode,
)
from tests.merge.test_ledger import attach, topology
from tests.waiting import come_true

pytestmark = pytest.mark.kafka


def on(bootstrap: str, *replicas: str) -> Topology:
    """A topology with an output of its own on this broker."""
    output = {"topic": f"out-{uuid.uuid4().hex[:12]}"}
    return topology(*replicas, kafka={"bootstrap": bootstrap}, output=output)


def control_of(base: Topology, seconds: float = 10) -> LoggedControl:
    return LoggedControl(
        base, Log(Connection(base.kafka.bootstrap), base.output.control_topic), seconds=seconds
    )


def client_of(control: LoggedControl) -> httpx.AsyncClient:
    """Asks the control API over this control."""
    app = FastAPI()
    app.include_router(routes(lambda: control))
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://worker")


def with_replicas(base: Topology, *replicas: str) -> Topology:
    return base.model_copy(update={"replicas": topology(*replicas).replicas})


async def all_is_read(base: Topology, *controls: LoggedControl) -> None:
    """Waits until each of these has read what is in the log by now."""
    async with control_of(base) as later:
        end = later.ledger.offset
    await come_true(lambda: all(each.ledger.offset >= end for each in controls))


def test_a_worker_that_starts_later_knows_all_that_was_decided(bootstrap: str) -> None:
    base = on(bootstrap, "a", "b")

    async def play() -> None:
        async with control_of(base) as control, asyncio.TaskGroup() as group:
            running = group.create_task(control.run())
            entry = await control.decide(decide(attach("c"), "anna", expects=1))
            assert (entry.accepted, entry.version) == (True, 2)
            refused = await control.decide(decide(Detach("x"), "anna"))
            assert refused.refusal is not None
            assert refused.refusal.kind == "unknown"
            running.cancel()
        async with control_of(base) as later:
            assert list(later.ledger.replicas) == ["a", "b", "c"]
            assert later.ledger.version == 2
            assert later.ledger.history == control.ledger.history
        async with control_of(with_replicas(base, "b")) as other:
            assert [each.replica.name for each in other.ledger.attached()] == ["b", "c"]

    asyncio.run(play())


def test_workers_that_start_at_once_declare_once(bootstrap: str) -> None:
    base = on(bootstrap, "a", "b")

    async def play() -> None:
        async with AsyncExitStack() as stack:
            controls = [control_of(base) for _ in range(4)]
            await asyncio.gather(*(stack.enter_async_context(each) for each in controls))
        async with control_of(base) as later:
            assert later.ledger.version == 1
            assert all(each.ledger.declared == later.ledger.declared for each in controls)

    asyncio.run(play())


def test_a_topology_that_contradicts_a_decision_is_refused(bootstrap: str) -> None:
    base = on(bootstrap, "a", "b")

    async def play() -> None:
        async with control_of(base) as control, asyncio.TaskGroup() as group:
            running = group.create_task(control.run())
            await control.decide(decide(attach("c", "X"), "anna"))
            running.cancel()
        with pytest.raises(ConfigurationError, match="replicas share the topic X"):
            async with control_of(with_replicas(base, "x")):
                pass

    asyncio.run(play())


def test_a_new_version_is_waited_for(bootstrap: str) -> None:
    base = on(bootstrap, "a", "b")

    async def play() -> None:
        async with (
            control_of(base) as one, control_of(base) as other, asyncio.TaskGroup() as group,
        ):  # fmt: skip
            running = [group.create_task(each.run()) for each in (one, other)]
            waiting = group.create_task(other.newer(1))
            await one.decide(decide(AcceptGap("a", 9), "anna"))
            assert await waiting == 2
            assert other.ledger.accepted_gaps[0].until == 9
            for each in running:
                each.cancel()

    asyncio.run(asyncio.wait_for(play(), 60))


def test_a_decision_that_is_made_twice_holds_once(bootstrap: str) -> None:
    base = on(bootstrap, "a", "b")
    decision = decide(Detach("b"), "anna")

    async def play() -> None:
        async with (
            control_of(base) as one, control_of(base) as other, asyncio.TaskGroup() as group,
        ):  # fmt: skip
            running = [group.create_task(each.run()) for each in (one, other)]
            verdicts = await asyncio.gather(
                *(each.decide(decision) for each in (one, other) for _ in range(3))
            )
            assert {(each.accepted, each.version) for each in verdicts} == {(True, 2)}
            for each in running:
                each.cancel()

    asyncio.run(play())


def test_of_many_decisions_against_each_version_exactly_one_holds(bootstrap: str) -> None:
    """Two workers, twenty people: each tries until its own decision is accepted."""
    base = on(bootstrap, "a", "b")
    people, verdicts = 20, list[Entry]()

    async def insist(control: LoggedControl, person: int) -> None:
        name = f"r{person}"
        for action in (attach(name), Quarantine(name, "!"), Release(name)):
            while True:
                expects = control.ledger.version
                entry = await control.decide(decide(action, f"person {person}", expects=expects))
                verdicts.append(entry)
                if entry.accepted:
                    break
                assert entry.refusal is not None
                assert entry.refusal.kind == "version"

    async def play() -> None:
        async with (
            control_of(base) as one, control_of(base) as other, asyncio.TaskGroup() as group,
        ):  # fmt: skip
            running = [group.create_task(each.run()) for each in (one, other)]
            async with asyncio.TaskGroup() as persons:
                for person in range(people):
                    persons.create_task(insist((one, other)[person % 2], person))
            await all_is_read(base, one, other)
            final = 1 + 3 * people
            assert one.ledger.version == final
            for each in running:
                each.cancel()
        async with control_of(base) as later:
            ledgers = [one.ledger, other.ledger, later.ledger]
        assert all(each.history == ledgers[0].history for each in ledgers)
        assert all(each.replicas == ledgers[0].replicas for each in ledgers)
        won = [entry for entry in ledgers[0].history if entry.accepted]
        assert [entry.version for entry in won] == list(range(1, final + 1))
        assert all(entry.decision.expects == entry.version - 1 for entry in won[1:])
        assert sum(each.accepted for each in verdicts) == 3 * people
        assert len(verdicts) > 3 * people, "nobody was in anybody's way"

    asyncio.run(asyncio.wait_for(play(), 60))


def test_over_http_one_of_those_who_ask_at_once_is_answered_200(bootstrap: str) -> None:
    base = on(bootstrap, "a", "b")

    async def play() -> None:
        async with (
            control_of(base) as one, control_of(base) as other, asyncio.TaskGroup() as group,
            client_of(one) as first, client_of(other) as second,
        ):  # fmt: skip
            running = [group.create_task(each.run()) for each in (one, other)]
            answers = await asyncio.gather(
                *(
                    client.post(f"/v1/replicas/{name}/detach", json={"expects": 1, "id": name})
                    for client, name in zip((first, second) * 5, "ab" * 5, strict=True)
                )
            )
            by_replica = {
                name: {each.status_code for each in answers if f"/{name}/" in str(each.url)}
                for name in "ab"
            }
            assert sorted(by_replica.values()) == [{200}, {409}]
            refused = next(each for each in answers if each.status_code == 409).json()
            assert (refused["error"], refused["version"]) == ("version", 2)
            await all_is_read(base, one, other)
            shown = [(await client.get("/v1/replicas")).json() for client in (first, second)]
            assert shown[0] == shown[1]
            for each in running:
                each.cancel()

    asyncio.run(asyncio.wait_for(play(), 60))


def test_garbage_in_the_log_stops_nobody(bootstrap: str) -> None:
    base = on(bootstrap, "a", "b")

    async def play() -> None:
        async with (
            control_of(base) as control,
            Log(Connection(bootstrap), base.output.control_topic) as log,
            asyncio.TaskGroup() as group,
        ):  # fmt: skip
            running = group.create_task(control.run())
            await log.append(b"\xff")
            await log.append(encode(decide(Detach("b"), "anna"))[:-1])
            assert (await control.decide(decide(Detach("b"), "anna", expects=1))).accepted
            assert control.ledger.unreadable == 2
            running.cancel()

    asyncio.run(play())


@pytest.mark.full
def test_while_kafka_is_away_a_decision_ends_in_time_and_its_id_shows_what_became_of_it(
    tmp_path: Path,
) -> None:
    broker = LocalBroker(tmp_path / "kafka")

    async def play() -> None:
        await asyncio.to_thread(broker.start)
        base = on(broker.bootstrap, "a", "b")
        async with control_of(base, seconds=1) as control, asyncio.TaskGroup() as group:
            running = group.create_task(control.run())
            await asyncio.to_thread(broker.stop)
            decision = decide(Detach("b"), "anna")
            with pytest.raises(TransportError, match=decision.id) as unknown:
                await control.decide(decision)
            assert unknown.value.retriable
            await asyncio.to_thread(broker.start)
            while True:
                with contextlib.suppress(TransportError):
                    entry = await control.decide(decision)
                    break
            assert (entry.accepted, entry.version) == (True, 2)
            running.cancel()

    try:
        asyncio.run(asyncio.wait_for(play(), 120))
    finally:
        broker.stop()
