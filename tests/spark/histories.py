"""Topics of many partitions, each a stream of its own, and what was known of them, by an oracle."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from random import Random
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from lmerge_service.elements import INFINITY, Adjust, Element, Insert, Stable
from lmerge_service.present.life import lives_of
from lmerge_service.present.presentation import Variation, present
from lmerge_service.tdb import TDB, reconstitute

__all__ = ("Record", "frame", "history", "known_by_offset", "known_by_time", "true_of")

EPOCH = 1_700_000_000_000


@dataclass(frozen=True)
class Record:
    """A record of a topic."""

    partition: int
    offset: int
    time: int
    incarnation: int
    element: Element


def history(seed: int, partitions: int, *, restarting: bool) -> list[Record]:
    """Of each partition a stream of any kind; offsets have holes, times go back and forth.

    `restarting`: some partitions go over to a further incarnation, in which the old one is still
    heard now and then.
    """
    rng = Random(seed)
    records = []
    for partition in range(partitions):
        told = [(0, each) for each in _stream(rng, partition)]
        if restarting and rng.random() < 0.5:
            told = _restarted(rng, told, _stream(rng, partition))
        offset, time = rng.randint(0, 3), EPOCH
        for incarnation, element in told:
            records.append(
                Record(partition, offset, time + rng.randint(-2, 2), incarnation, element)
            )
            offset += rng.choice((1, 1, 1, 2, 5))
            time += rng.choice((0, 1, 3))
    return records


def _stream(rng: Random, partition: int) -> list[Element]:
    keys = {(rng.choice("ABC"), rng.randint(-5, 30)) for _ in range(rng.randint(0, 12))}
    events = [
        (f'"{name}{partition}"', vs, rng.choice((vs + rng.randint(1, 20), INFINITY)))
        for name, vs in sorted(keys)
    ]
    if events and rng.random() < 0.5:
        events += rng.choices(events, k=2)  # a multiset, for which R4 is needed
    variation = Variation(
        provisional=rng.choice((0.0, 0.5, 1.0)),
        revisions=3,
        spread=15,
        endless=0.2,
        reinserted=rng.choice((0.0, 0.4)),
        phantoms=rng.choice((0.0, 0.4)),
        doubled=rng.choice((0.0, 0.5)),
        disorder=rng.choice((0.0, 0.5)),
        displacement=20,
        stable_probability=rng.choice((0.0, 0.2, 1.0)),
        stable_lag=rng.randint(0, 3),
        closed=rng.random() < 0.5,
    )
    return list(present(lives_of(events), variation, rng.randint(0, 1 << 30)))


def _restarted(
    rng: Random, old: list[tuple[int, Element]], fresh: list[Element]
) -> list[tuple[int, Element]]:
    at = rng.randint(0, len(old))
    late = [each for each in old[at:] if rng.random() < 0.3]  # still under way, heard by nobody
    new = [(3, each) for each in fresh]
    return old[:at] + (new[:1] + late + new[1:] if new else [])


def frame(spark: SparkSession, records: Iterable[Record]) -> DataFrame:
    """As `write_elements` takes it."""
    rows = []
    for each in records:
        moment = datetime.fromtimestamp(each.time / 1000, UTC)
        where = ("t", each.partition, each.offset, moment, each.incarnation)
        match each.element:
            case Insert(payload, vs, ve):
                said: tuple[Any, ...] = ("insert", payload, vs, None, ve, None)
            case Adjust(payload, vs, vold, ve):
                said = ("adjust", payload, vs, vold, ve, None)
            case Stable(vc):
                said = ("stable", None, None, None, None, vc)
        rows.append(where + said)
    return spark.createDataFrame(
        rows,
        "source string, partition int, offset long, timestamp timestamp, incarnation long, "
        "op string, payload string, vs long, vold long, ve long, vc long",
    )


def known_by_offset(records: Iterable[Record], known: Mapping[int, int]) -> TDB:
    """The TDB of a prefix, that record of each partition included."""
    return _known(each for each in records if each.offset <= known.get(each.partition, -1))


def known_by_time(records: Iterable[Record], known: int) -> TDB:
    """The same, of each partition up to where a record's time is beyond."""
    prefix, over = [], set[int]()
    for each in records:
        if each.time > known:
            over.add(each.partition)
        if each.partition not in over:
            prefix.append(each)
    return _known(prefix)


def _known(prefix: Iterable[Record]) -> TDB:
    """Of the last incarnation that anybody has begun, each partition by itself."""
    prefix = list(prefix)
    last = max((each.incarnation for each in prefix), default=0)
    streams: dict[int, list[Element]] = {}
    for each in prefix:
        if each.incarnation == last:
            streams.setdefault(each.partition, []).append(each.element)
    return TDB(event for stream in streams.values() for event in reconstitute(stream))


def true_of(tdb: TDB, valid: int | None) -> TDB:
    """Those of its events that are true then."""
    return TDB(each for each in tdb if valid is None or each.vs <= valid < each.ve)
