"""Hand-made histories: topics from elements, and what a good run looks like."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from lmerge_service.drills.history import History, ReplicaHistory
from lmerge_service.drills.records import CommittedRecord, CommittedTopic
from lmerge_service.elements import START, Adjust, Element, Insert, Stable
from lmerge_service.formats.headers import incarnation_headers
from lmerge_service.formats.wire import encode

A, B, C = b'"A"', b'"B"', b'"C"'


def records(
    name: str,
    elements: Iterable[Element],
    *,
    partition: int = 0,
    start: int = 0,
    at: int = 0,
    incarnation: int = 0,
    joining_at: int = START,
) -> list[CommittedRecord]:
    """A record each ten milliseconds, beginning at `at`; offsets leave room for markers."""
    headers = tuple(incarnation_headers(incarnation, joining_at))
    return [
        CommittedRecord(name, partition, start + 2 * k, at + 10 * k, encode(element), None, headers)
        for k, element in enumerate(elements)
    ]


def topic(name: str, elements: Sequence[Element], *, at: int = 0) -> CommittedTopic:
    return CommittedTopic(name, tuple(records(name, elements, at=at)))


TRUTH: list[Element] = [Insert(A, 1, 9), Insert(B, 3, 20), Stable(10), Insert(C, 12, 15)]


def good() -> History:
    """Two replicas that agree, and an output that follows them up to stable(10)."""
    return History(
        output=topic("out", [Insert(A, 1, 9), Insert(B, 3, 20), Stable(10)], at=50),
        replicas={
            "a": ReplicaHistory(topic("a", TRUTH)),
            "b": ReplicaHistory(
                topic("b", [Insert(B, 3, 8), Adjust(B, 3, 8, 20), Insert(A, 1, 9), Stable(10)])
            ),
        },
    )


def emitting(*elements: Element, at: int = 50) -> History:
    """The good history with another output."""
    return replace(good(), output=topic("out", elements, at=at))
