"""The real service before the judge: topics dumped from the broker, what the worker shows."""

import asyncio
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from lmerge_service.drills.dump import dump
from lmerge_service.drills.history import ALWAYS, History, Interval, ReplicaHistory, check
from lmerge_service.drills.observability_checks import Capture
from lmerge_service.drills.records import CommittedRecord
from lmerge_service.drills.verdicts import HistoryReport
from tests.service.cluster import Merge, Worker

__all__ = ("capture", "judged", "letters")


def judged(
    merge: Merge,
    *,
    liars: Sequence[str] = (),
    silent: Sequence[str] = (),
    attached: Mapping[str, Sequence[Interval]] = MappingProxyType({}),
    **more: Any,
) -> HistoryReport:
    """The verdict over what the broker holds; `silent` replicas have no topic yet."""
    present = {name: topic for name, topic in merge.topics.items() if name not in silent}
    topics = asyncio.run(dump(merge.bootstrap, [merge.output, *present.values()]))
    return check(
        History(
            output=topics[merge.output],
            replicas={
                name: ReplicaHistory(
                    topics[topic],
                    honest=name not in liars,
                    attached=attached.get(name, ALWAYS),
                )
                for name, topic in present.items()
            },
            **more,
        )
    )


def capture(worker: Worker) -> Capture:
    """What the worker shows just now."""
    metrics, status = worker.get("/metrics"), worker.status()
    assert metrics is not None
    assert status is not None
    return Capture(status, metrics.text, worker.log.read_text())


def letters(merge: Merge) -> list[tuple[CommittedRecord, dict[str, str]]]:
    """The dead letters, each with its headers."""
    topic = asyncio.run(dump(merge.bootstrap, [merge.dead_letters]))[merge.dead_letters]
    return [
        (record, {name: value.decode() for name, value in record.headers})
        for record in topic.records
    ]
