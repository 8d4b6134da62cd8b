"""Generated streams without Spark, and the same events by an oracle of a few lines."""

from collections.abc import Iterator
from hashlib import blake2b
from itertools import accumulate, pairwise

import pyarrow as pa
from hypothesis import strategies as st

from lmerge_service.elements import INFINITY, START, Adjust, Element, Insert, Stable
from lmerge_service.spark.generator.pieces import ending, places
from lmerge_service.spark.generator.slices import Presentation
from lmerge_service.spark.generator.workload import Workload
from lmerge_service.tdb import TDB
from lmerge_service.workloads.lifetime import deadline
from lmerge_service.workloads.presentation import Variation

__all__ = ("batches", "check_stables", "elements", "logical", "variations", "workloads")

_MASK = 2**64 - 1


def batches(made: Presentation) -> Iterator[pa.RecordBatch]:
    """What Spark's tasks would make, one after the other."""
    workload = made.workload
    starts = workload.starts(workload.added(map(made.bounds, range(made.blocks))))
    found = places(made.summary(number, starts) for number in range(made.blocks))
    for number in range(made.blocks):
        yield from made.rows(number, starts, found[number])
    if made.variation.closed:
        yield ending(found[-1])


def elements(made: Presentation) -> list[Element]:
    """The stream; its offsets must be 0, 1, 2, …"""
    rows = [row for batch in batches(made) for row in batch.to_pylist()]
    assert [row["offset"] for row in rows] == list(range(len(rows)))
    return [element(row) for row in rows]


def element(row: dict[str, object]) -> Element:
    """The element of a row, and nothing besides."""
    fields = {name: value for name, value in row.items() if value is not None}
    del fields["offset"]
    kind = {"insert": Insert, "adjust": Adjust, "stable": Stable}[str(fields.pop("op"))]
    made: Element = kind(**fields)
    return made


def logical(workload: Workload) -> TDB:
    """The events, by plain arithmetic and one after the other."""

    def word(purpose: str, number: int) -> int:
        start = blake2b(f"{workload.seed} workload\n{purpose}".encode(), digest_size=8).digest()
        z = (int.from_bytes(start, "big") + number * 0x9E3779B97F4A7C15) & _MASK
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
        return z ^ (z >> 31)

    def below(purpose: str, number: int, end: int) -> int:
        return int((word(purpose, number) >> 11) * 2.0**-53 * end)

    events, vs, further = [], 0, -(-workload.payload_bytes // 16) - 1
    for n in range(workload.events):
        vs += below("gap", n, workload.max_gap + 1)
        words = [word("data", n), *(word("more data", n * further + k) for k in range(further))]
        data = "".join(f"{each:016x}" for each in words)[: workload.payload_bytes]
        payload = f'{{"data":"{data}","key":{below("key", n, 401)}}}'
        events.append((payload, vs, vs + workload.duration))
    return TDB(events)


def workloads(most: int = 40) -> st.SearchStrategy[Workload]:
    """Small ones, in which times collide."""
    return st.builds(
        Workload,
        events=st.integers(1, most),
        seed=st.integers(0, 99),
        max_gap=st.integers(1, 5),
        event_duration=st.integers(1, 40),
        payload_bytes=st.sampled_from((16, 17, 31, 40)),
    )


def variations() -> st.SearchStrategy[Variation]:
    """Any that a generated stream may have."""
    fraction = st.sampled_from((0.0, 0.3, 1.0))
    return st.builds(
        Variation,
        provisional=fraction,
        revisions=st.integers(1, 3),
        spread=st.integers(1, 40),
        endless=fraction,
        reinserted=fraction,
        phantoms=fraction,
        doubled=fraction,
        lead=st.integers(0, 10),
        pace=st.sampled_from(("anytime", "eager", "late")),
        disorder=fraction,
        displacement=st.integers(1, 60),
        stable_probability=fraction,
        stable_lag=st.integers(0, 10),
        closed=st.booleans(),
    )


def check_stables(stream: list[Element], variation: Variation) -> None:
    """Each covers what is certain of all that comes later, less the lag; something stands between
    two of them."""
    floors = list(accumulate(map(_due, reversed(stream)), min))[::-1]
    last = START
    for (place, each), (_, following) in pairwise([*enumerate(stream), (0, Stable(0))]):
        if isinstance(each, Stable) and each.vc < INFINITY:
            assert each.vc == floors[place] - variation.stable_lag
            assert each.vc > last
            assert not isinstance(following, Stable) or place + 2 >= len(stream)
            last = each.vc


def _due(element: Element) -> int:
    return INFINITY if isinstance(element, Stable) else deadline(element)
