"""Tables of outputs on a real broker: loaded at any time, and judged by what the output is."""

import asyncio
import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.structs import ConsumerRecord

from lmerge_service.formats.wire import WireDecoder
from lmerge_service.kafka.connection import Connection
from lmerge_service.offline.table_audit import TableVerdict, audit_table
from tests.service.cluster import Merge
from tests.table_reader import TableView, TopicEvents, live, reconstituted

__all__ = ("Loading", "audited", "follow", "live_of", "output_of", "records_of", "table_of")


async def _records(merge: Merge, topic: str, start: int = 0) -> list[ConsumerRecord[Any, Any]]:
    """What is committed of the first partition from an offset on, up to its end as it is now."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=merge.bootstrap,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        fetch_max_wait_ms=20,
    )
    tp, found = TopicPartition(topic, 0), []
    async with consumer:
        consumer.assign([tp])
        consumer.seek(tp, start)
        end = (await consumer.end_offsets([tp]))[tp]
        while await consumer.position(tp) < end:
            found += (await consumer.getmany(tp, timeout_ms=20)).get(tp, [])
    return [each for each in found if each.offset < end]


def records_of(merge: Merge, topic: str) -> list[ConsumerRecord[Any, Any]]:
    return asyncio.run(_records(merge, topic))


def audited(merge: Merge) -> TableVerdict:
    """What `lmerge audit --table` finds."""
    connection, now = Connection(merge.bootstrap), time.time_ns() // 1_000_000
    return asyncio.run(audit_table(connection, merge.output, WireDecoder(), keep=None, now=now))


def output_of(merge: Merge) -> list[ConsumerRecord[Any, Any]]:
    return records_of(merge, merge.output)


def table_of(merge: Merge) -> TableView:
    view = TableView()
    for record in records_of(merge, f"{merge.output}.table"):
        view.load(record)
    return view


def live_of(records: list[ConsumerRecord[Any, Any]], *, keyed: bool = True) -> TopicEvents:
    return live(reconstituted(records, keyed=keyed), TableView().stable(records))


def follow(
    view: TableView, records: Sequence[ConsumerRecord[Any, Any]], chance: random.Random
) -> None:
    """Whoever has loaded a table that is whole, and follows the output from there to anywhere, has
    what it is: all that is live, and nothing else than it has."""
    start = view.contains_to
    assert start is not None
    later = [each.offset + 1 for each in records if each.offset >= start]
    for upto in {start, *chance.sample(later, min(3, len(later)))}:
        prefix = [each for each in records if each.offset < upto]
        have = view.followed(prefix, start=start, keyed=True)
        assert not live_of(prefix) - have, (start, upto)
        assert not have - reconstituted(prefix, keyed=True), (start, upto)


class Loading:
    """Loads the table at random times, until it is left; then judges what came of it."""

    def __init__(self, merge: Merge) -> None:
        self.views: list[TableView] = []
        self._merge = merge
        self._done = threading.Event()

    def run(self) -> None:
        chance = random.Random(7)
        while not self._done.wait(chance.uniform(0, 0.3)):
            try:
                view = table_of(self._merge)
            except Exception:  # noqa: S112 - it is not there yet
                continue
            if view.is_whole:
                self.views.append(view)

    @contextmanager
    def loading(self) -> Iterator["Loading"]:
        thread = threading.Thread(target=self.run)
        thread.start()
        try:
            yield self
        finally:
            self._done.set()
            thread.join(60)

    def judge(self) -> None:
        records, chance = output_of(self._merge), random.Random(8)
        for view in self.views:
            follow(view, records, chance)
