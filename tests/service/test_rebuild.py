"""A task that was killed knows what it knew: replicas of several partitions and incarnations, in
any interleaving, rebuilt from their committed prefixes and the output (docs/design.md)."""

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from lmerge_service.core import LMerge, lmerge
from lmerge_service.elements import START, Adjust, Element, Insert, Stable
from lmerge_service.formats.headers import SEQ_HEADER, incarnation_headers
from lmerge_service.formats.wire import WireDecoder, encode
from lmerge_service.merge.step import MergeStep
from tests.strategies import any_elements

REPLICAS = ("a", "b", "c")


@dataclass(frozen=True)
class Record:
    """One record, as a replica's partition holds it."""

    value: bytes
    partition: int
    headers: list[tuple[str, bytes]] = field(default_factory=list)
    topic: str = "in"
    offset: int = 0
    key: bytes | None = None
    timestamp: int = 0


def on_the_wire(element: Element) -> bytes:
    match element:
        case Insert(payload, vs, ve):
            return encode(Insert(b'"%s"' % payload.encode(), vs, ve))
        case Adjust(payload, vs, vold, ve):
            return encode(Adjust(b'"%s"' % payload.encode(), vs, vold, ve))
        case Stable():
            return encode(element)


@st.composite
def records(draw: st.DrawFn, partition: int) -> list[Record]:
    """A partition's records: lives of the replica, one after the other, lies and all."""
    found = []
    for incarnation in sorted(draw(st.sets(st.integers(0, 3), min_size=1, max_size=3))):
        # every record of a life must have the same joining time, in every partition
        joining_at = START if incarnation in (0, 2) else 6 * incarnation
        headers = incarnation_headers(incarnation, joining_at)
        elements = draw(st.lists(any_elements(), max_size=8))
        numbered = draw(st.booleans())  # with repeats, and with numbers that begin again
        for each in elements:
            number = [(SEQ_HEADER, b"%d" % draw(st.integers(1, 5)))] if numbered else []
            found.append(Record(on_the_wire(each), partition, [*headers, *number]))
    return found


@st.composite
def histories(draw: st.DrawFn) -> tuple[dict[str, int], list[tuple[str, Record]]]:
    """(partitions of each replica, records of all of them as they were merged)."""
    widths = {name: draw(st.integers(1, 2)) for name in REPLICAS}
    waiting = [
        (name, list(reversed(draw(records(partition)))))
        for name, width in widths.items()
        for partition in range(width)
    ]
    merged = []
    while waiting := [each for each in waiting if each[1]]:
        name, partition = draw(st.sampled_from(waiting))
        merged.append((name, partition.pop()))
    return widths, merged


def attached(
    merge: LMerge, widths: dict[str, int], was: dict[str, MergeStep] | None
) -> dict[str, MergeStep]:
    return {
        name: MergeStep(
            merge,
            name,
            WireDecoder(),
            topic="in",
            partitions=width,
            joining_at=START if was is None else was[name].decoder.joining_at,
            incarnation=0 if was is None else was[name].decoder.incarnation,
        )
        for name, width in widths.items()
    }


@given(histories(), st.data())
def test_a_rebuilt_task_has_nothing_to_add_and_goes_on_the_same(
    history: tuple[dict[str, int], list[tuple[str, Record]]], data: st.DataObject
) -> None:
    widths, merged = history
    cut = data.draw(st.integers(0, len(merged)))
    merge = lmerge()
    steps = attached(merge, widths, None)
    emitted: list[Element] = []
    for name, record in merged[:cut]:
        steps[name].take(record.partition, [record], emitted, [])

    rebuilt = lmerge()
    rebuilt.replay_output(emitted)
    again = attached(rebuilt, widths, steps)  # the standing that is stored with each offset
    missed: list[Element] = []
    for name in data.draw(st.permutations(REPLICAS)):
        for partition in data.draw(st.permutations(range(widths[name]))):
            prefix = [r for n, r in merged[:cut] if (n, r.partition) == (name, partition)]
            again[name].take(partition, prefix, missed, [])
            rebuilt.check()
    assert missed == [], "the output has all of it"
    assert rebuilt.max_stable == merge.max_stable

    for name, record in merged[cut:]:
        one: list[Element] = []
        two: list[Element] = []
        steps[name].take(record.partition, [record], one, [])
        again[name].take(record.partition, [record], two, [])
        assert sorted(map(repr, one)) == sorted(map(repr, two))
