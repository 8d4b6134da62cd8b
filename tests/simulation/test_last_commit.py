"""The last commit record of a state topic, which is compacted while it is looked for."""

from random import Random
from typing import cast

from lmerge_service.kafka.source import Source, TopicPartition
from lmerge_service.kafka.state import last_with_key
from tests.simulation.clients import MemorySource
from tests.simulation.loop import run
from tests.simulation.memory import Broker
from tests.simulation.network import Network

TP = TopicPartition("state", 0)


def found_after(broker: Broker, end: int) -> bytes | None:
    async def main() -> bytes | None:
        source = cast(Source, MemorySource(Network(broker, Random(1))))
        record = await last_with_key(source, TP, b"commit", end=end)
        return None if record is None else record.value

    return run(main())


def written(*values: bytes) -> Broker:
    broker = Broker(lambda: 0.0)
    broker.create("state")
    broker.produce(TP, [(b"other", b"x", ())])
    for value in values:
        broker.produce(TP, [(b"commit", value, ())])
    return broker


def test_one_that_was_replaced_since_the_end_was_asked_for_is_the_later_one() -> None:
    """Else a task would count as one that has committed nothing (simulation, seed 11801)."""
    broker = written(b"1")
    end = broker.last_stable(TP)
    broker.produce(TP, [(b"commit", b"2", ())])
    assert found_after(broker, end) == b"1"
    broker.compact("state")
    assert found_after(broker, end) == b"2"


def test_where_there_is_none_there_is_none() -> None:
    assert found_after(written(), 1) is None
    assert found_after(written(), 0) is None
