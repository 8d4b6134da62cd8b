"""What only the Kafka in memory does on demand, and the clock that jumps."""

import asyncio

import pytest

from lmerge_service.kafka.source import TopicPartition
from tests.simulation.loop import Deadlock, run
from tests.simulation.memory import Broker, Fenced, Message, OutOfRange

TP = TopicPartition("t", 0)


def messages(*pairs: tuple[str | None, str]) -> list[Message]:
    return [(None if key is None else key.encode(), value.encode(), ()) for key, value in pairs]


def broker(now: float = 0.0) -> Broker:
    made = Broker(lambda: now)
    made.create("t")
    return made


def values(kafka: Broker) -> list[tuple[int, bytes | None]]:
    return [(record.offset, record.value) for record in kafka.topic("t").records]


def test_compaction_keeps_the_last_of_each_key_and_what_has_none() -> None:
    kafka = broker()
    kafka.produce(TP, messages(("a", "1"), ("b", "1"), (None, "x"), ("a", "2")))
    writer = kafka.init_producer("w")
    kafka.produce(TP, messages(("b", "open")), writer)
    kafka.produce(TP, messages(("b", "behind")))
    kafka.compact("t")
    assert values(kafka) == [(1, b"1"), (2, b"x"), (3, b"2"), (5, b"behind")]
    kafka.end(writer, commit=True)
    kafka.compact("t")
    assert values(kafka) == [(2, b"x"), (3, b"2"), (5, b"behind")]


def test_an_unclean_loss_takes_the_tail_and_offsets_are_given_again() -> None:
    kafka = broker()
    kafka.produce(TP, messages(("a", "1"), ("a", "2")))
    kafka.lose_tail(TP, 1)
    assert kafka.high_watermark(TP) == 1
    with pytest.raises(OutOfRange):
        kafka.fetch(TP, 2, 10)
    kafka.produce(TP, messages(("a", "3")))
    assert values(kafka) == [(0, b"1"), (1, b"3")]


def test_a_transaction_that_is_open_for_too_long_is_aborted_and_its_producer_fenced() -> None:
    now = [0.0]
    kafka = Broker(lambda: now[0], transaction_seconds=60)
    kafka.create("t")
    writer = kafka.init_producer("w")
    kafka.produce(TP, messages(("a", "1")), writer)
    now[0] = 59.0
    assert kafka.last_stable(TP) == 0
    now[0] = 60.0
    assert kafka.last_stable(TP) == 2
    with pytest.raises(Fenced):
        kafka.end(writer, commit=True)
    assert values(kafka) == []


def test_a_fetch_stops_at_the_most_and_goes_on_behind_what_was_aborted() -> None:
    kafka = broker()
    writer = kafka.init_producer("w")
    kafka.produce(TP, messages(("a", "no")), writer)
    kafka.end(writer, commit=False)
    kafka.produce(TP, messages(("a", "1"), ("a", "2")))
    records, position = kafka.fetch(TP, 0, 1)
    assert ([record.value for record in records], position) == ([b"1"], 3)
    assert kafka.fetch(TP, position, 9)[1] == 4


def test_time_jumps_when_all_wait_and_stands_still_otherwise() -> None:
    async def main() -> list[tuple[str, float]]:
        clock, woken = asyncio.get_running_loop().time, []

        async def wait(name: str, seconds: float) -> None:
            await asyncio.sleep(seconds)
            woken.append((name, clock()))

        await asyncio.gather(wait("day", 86_400), wait("hour", 3_600), wait("other hour", 3_600))
        return woken

    assert run(main()) == [("hour", 3_600.0), ("other hour", 3_600.0), ("day", 86_400.0)]


def test_when_nothing_can_happen_any_more_it_is_reported() -> None:
    async def main() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(Deadlock):
        run(main())
