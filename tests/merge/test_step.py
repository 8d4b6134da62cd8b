"""From records to elements: incarnations, dead letters, and independence of interleaving."""

from dataclasses import dataclass, field

import pytest

from lmerge_service.core import LMerge, lmerge
from lmerge_service.elements import START, Element, Insert, Stable
from lmerge_service.formats.dead_letters import DeadLetter
from lmerge_service.formats.headers import SEQ_HEADER, incarnation_headers
from lmerge_service.formats.wire import WireDecoder, encode
from lmerge_service.merge.guards.evaluator import GuardEvaluator
from lmerge_service.merge.guards.verdicts import Ruling
from lmerge_service.merge.step import MergeStep


@dataclass
class Record:
    value: bytes | None
    offset: int = 0
    partition: int = 0
    headers: list[tuple[str, bytes]] = field(default_factory=list)
    topic: str = "in"
    key: bytes | None = b"k"
    timestamp: int = 0


def insert(payload: str, vs: int, ve: int) -> Insert[bytes]:
    return Insert(b'"%s"' % payload.encode(), vs, ve)


def records(*elements: Element, incarnation: int = 0, joining_at: int = START, partition: int = 0):  # type: ignore[no-untyped-def]
    headers = incarnation_headers(incarnation, joining_at)
    return [Record(encode(element), partition=partition, headers=headers) for element in elements]


DEEP = b'{"op":"insert","payload":' + b"[" * 10_000 + b"]" * 10_000 + b',"vs":1,"ve":2}'


class Fed:
    def __init__(self, partitions: int = 1) -> None:
        self.merge: LMerge = lmerge()
        self.step = MergeStep(
            self.merge, "r", WireDecoder(), topic="in", partitions=partitions, joining_at=START
        )
        self.dead: list[DeadLetter] = []

    def take(self, batch: list[Record]) -> list[Element]:
        out: list[Element] = []
        self.step.take(batch[0].partition if batch else 0, batch, out, self.dead)
        return out


@pytest.mark.parametrize("replay_input", [False, True])
def test_a_co_partitioned_replica_is_read_up_to_the_first_element_of_another_partition(
    replay_input: bool,
) -> None:
    """What was merged before is replayed all the same."""
    step = MergeStep(
        lmerge(), "r", WireDecoder(), topic="in", partitions=1, co_partitioned=True,
        routes=lambda payload: 3 if payload == b'"wrong"' else 2,
    )  # fmt: skip
    events = [insert("right", 1, 9), insert("wrong", 2, 9), insert("right", 3, 9)]
    batch = records(events[0], Stable(1), *events[1:], partition=2)
    for offset, each in enumerate(batch):
        each.offset = 10 + offset
    out: list[Element] = []
    following = step.take(2, batch, out, [], replay_input=replay_input)
    if replay_input:
        assert (following, step.decoder.torn) == (14, None)
        return
    assert following == 12
    assert out == [events[0], Stable(1)]
    assert str(step.decoder.torn).startswith(
        "has '\"wrong\"' at offset 12 of partition 2, which belongs in partition 3,"
    )


def test_a_higher_incarnation_begins_anew_in_the_middle_of_a_batch() -> None:
    fed = Fed()
    old, new = insert("old", 1, 99), insert("new", 6, 9)
    emitted = fed.take([*records(old, Stable(3)), *records(new, Stable(2), incarnation=1)])
    assert emitted == [old, Stable(3), new]
    assert fed.step.decoder.incarnation == 1
    assert fed.merge.inputs["r"].stable == 2
    assert fed.merge.breaches() == []


def test_records_of_an_older_incarnation_still_in_flight_are_ignored_and_counted() -> None:
    fed = Fed(partitions=2)
    fed.take(records(insert("new", 6, 9), incarnation=2, partition=0))
    assert fed.take(records(insert("old", 1, 9), Stable(50), incarnation=1, partition=1)) == []
    assert fed.step.decoder.stale == 2
    assert fed.take(records(insert("x", 7, 9), incarnation=2, partition=1)) == [insert("x", 7, 9)]


def test_joining_at_keeps_an_incarnation_from_leading_too_early() -> None:
    fed = Fed()
    fed.merge.attach("other")
    fed.merge.process("other", Stable(10))
    assert fed.take(records(Stable(60), incarnation=1, joining_at=50)) == []
    assert not fed.merge.inputs["r"].joined
    assert fed.merge.process("other", Stable(50)) == [Stable(50), Stable(60)]


@pytest.mark.parametrize(
    ("cut", "read", "correct_from"),
    [
        ([], [(0, 1, 50)], 50),
        ([0], [(0, 1, 50)], 100),  # what it published before may be gone
        ([0], [(0, 1, 120)], 120),
        ([0], [(0, 1, START)], 100),
        ([0], [(0, 0, START), (0, 1, 50)], 50),  # it begins behind another one: all of it is there
        ([0], [(0, 1, 50), (0, 2, 60)], 60),
        ([1], [(0, 1, 50)], 100),  # partition 1 may have lost some of it
        ([1], [(1, 0, START), (0, 1, 50)], 50),
        ([0, 1], [(0, 0, START), (0, 1, 50), (1, 1, 50)], 100),
    ],
)
def test_of_a_log_without_its_beginning_a_joining_time_counts_only_if_all_of_it_is_there(
    cut: list[int], read: list[tuple[int, int, int]], correct_from: int
) -> None:
    """Records as (partition, incarnation, joining time), of a replica that was stated to be correct
    from 100 on; it is the same for who is restored in between."""
    for restored in range(len(read) + 1):
        step = MergeStep(
            lmerge("R3"), "r", WireDecoder(), topic="in", partitions=2, joining_at=100, cut=cut
        )
        for number, (partition, incarnation, since) in enumerate(read):
            if number == restored:
                before, step = step, MergeStep(
                    lmerge("R3"), "r", WireDecoder(), topic="in", partitions=2,
                    joining_at=step.decoder.joining_at, incarnation=step.decoder.incarnation,
                )  # fmt: skip
                for part in before.parts():
                    step.restore(*part)
            found = records(insert("x", 6, 9), incarnation=incarnation, joining_at=since)
            step.take(partition, found, [], [])
        assert step.decoder.joining_at == correct_from


@pytest.mark.parametrize("place", [0, 1, 2], ids=["first", "middle", "last"])
@pytest.mark.parametrize(
    ("poison", "reason"),
    [
        (b"\xff\xfe", "not_utf8"),
        (b'{"op":"insert","payl', "not_json"),
        (b"[1,2]", "not_an_element"),
        (b"", "not_json"),
        (None, "tombstone"),
        (
            b'{"op":"insert","payload":' + b"[" * 10_000 + b"]" * 10_000 + b',"vs":1,"ve":2}',
            "nesting",
        ),
        (b'{"op":"insert","payload":NaN,"vs":1,"ve":2}', "not_json"),
        (b'{"op":"insert","payload":1,"vs":1,"ve":2,"ve":3}', "duplicate_key"),
        (b'{"op":"insert","payload":"\\ud800","vs":1,"ve":2}', "lone_surrogate"),
        (b'{"op":"insert","payload":1e400,"vs":1,"ve":2}', "number"),
        (b'{"op":"insert","payload":"' + b"x" * (1 << 20) + b'","vs":1,"ve":2}', "too_large"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_poison_record_goes_to_the_dead_letters_and_the_rest_goes_on(
    poison: bytes | None, reason: str, place: int
) -> None:
    fed = Fed()
    good = [insert("a", 1, 9), insert("b", 2, 9)]
    batch = records(*good)
    batch.insert(place, Record(poison))
    for offset, record in enumerate(batch):
        record.offset = offset
    assert fed.take(batch) == good
    (letter,) = fed.dead
    assert (letter.replica, letter.topic, letter.partition, letter.offset) == ("r", "in", 0, place)
    assert letter.reason == reason


@pytest.mark.parametrize(
    "value", [b"", b"x", b"1.5", b"-1", b"9" * 40, b"\xff", b" 1", "1\u0662".encode()]
)
def test_a_header_that_is_no_number_makes_a_dead_letter(value: bytes) -> None:
    fed = Fed()
    batch = records(insert("a", 1, 9))
    batch[0].headers = [("lmerge-incarnation", value)]
    assert fed.take(batch) == []
    assert [letter.reason for letter in fed.dead] == ["header"]
    assert fed.step.decoder.incarnation == 0


def test_foreign_headers_mean_nothing() -> None:
    fed = Fed()
    batch = records(insert("a", 1, 9))
    batch[0].headers = [("traceparent", b"00-xyz")]
    assert fed.take(batch) == [insert("a", 1, 9)]


class Judged(GuardEvaluator):
    """Rules as configured, by the stable; remembers what it was asked."""

    def __init__(self, **rulings: Ruling) -> None:
        self.rulings = {int(name.removeprefix("at_")): each for name, each in rulings.items()}
        self.asked: list[tuple[str, int, int, int]] = []
        self.anew = 0

    def calm(self, *_: object) -> int:
        return START

    def stable(self, replica: str, partition: int, vc: int, offset: int) -> Ruling:
        self.asked.append((replica, partition, vc, offset))
        return self.rulings.get(vc, Ruling.MERGE)

    def started_over(self, replica: str, incarnation: int) -> None:
        self.anew += 1


def judged(fed: Fed, judge: Judged, batch: list[Record]) -> tuple[int, list[Element]]:
    for number, record in enumerate(batch):
        record.offset = 10 * number  # with gaps, as transactions make them
    out: list[Element] = []
    return fed.step.take(0, batch, out, fed.dead, guards=judge), out


def test_a_stable_that_waits_stops_its_partition_before_its_record() -> None:
    fed, judge = Fed(), Judged(at_50=Ruling.WAIT)
    a, b = insert("a", 1, 9), insert("b", 60, 70)
    batch = records(Stable(0), a, Stable(50), b)
    assert judged(fed, judge, batch) == (20, [Stable(0), a])
    assert judge.asked == [("r", 0, 0, 0), ("r", 0, 50, 20)]
    assert fed.merge.inputs["r"].stable == 0
    judge.rulings.clear()
    out: list[Element] = []
    assert fed.step.take(0, batch[2:], out, fed.dead, guards=judge) == 31
    assert out == [Stable(50), b]
    assert fed.step.front == 60


def test_a_chunk_may_end_with_a_stable() -> None:
    fed, judge = Fed(), Judged(at_5=Ruling.MERGE_AND_STOP)
    a = insert("a", 7, 9)
    assert judged(fed, judge, records(Stable(5), a)) == (1, [Stable(5)])
    assert judged(fed, judge, records(a)) == (1, [a])


def test_a_new_incarnation_is_reported_before_its_stables_are_judged() -> None:
    fed, judge = Fed(), Judged()
    batch = [*records(Stable(9)), *records(Stable(5), incarnation=1), *records(Stable(7))]
    assert judged(fed, judge, batch) == (21, [Stable(9)])
    assert (judge.anew, fed.step.decoder.stale) == (1, 1)
    assert [vc for _, _, vc, _ in judge.asked] == [9, 5], "what is stale is not judged"


def test_stables_that_are_muted_or_recalled_are_not_judged() -> None:
    judge = Judged()
    merge = lmerge()
    ignore_stables_before = {0: 15}
    step = MergeStep(
        merge,
        "r",
        WireDecoder(),
        topic="in",
        partitions=1,
        ignore_stables_before=ignore_stables_before,
    )
    a = insert("a", 1, 99)
    batch = records(Stable(50), a, Stable(60))
    for number, record in enumerate(batch):
        record.offset = 10 * number
    out: list[Element] = []
    step.take(0, batch, out, [], guards=judge)
    assert out == [a, Stable(60)]
    assert [vc for _, _, vc, _ in judge.asked] == [60]


def numbered(*numbers: int, partition: int = 0, incarnation: int = 0) -> list[Record]:
    """An event for each number, as from a writer that may repeat itself."""
    headers = incarnation_headers(incarnation)
    numbered_records: list[Record] = records(
        *(insert(f"e{n}", n, 99) for n in numbers), partition=partition
    )
    for number, record in zip(numbers, numbered_records, strict=True):
        record.headers = [(SEQ_HEADER, b"%d" % number), *headers]
    return numbered_records


def events(*numbers: int) -> list[Element]:
    return [insert(f"e{n}", n, 99) for n in numbers]


def test_what_its_writer_has_written_before_is_left_out_and_counted() -> None:
    """Also in R4, in which a second insert is a second event."""
    merge = lmerge("R4")
    step = MergeStep(merge, "r", WireDecoder(), topic="in", partitions=2)
    out: list[Element] = []
    step.take(0, numbered(1, 2, 1), out, [])
    step.take(0, numbered(2, 3, 3, 5), out, [])
    step.take(1, numbered(4), out, [])
    step.take(0, records(insert("e5", 5, 99)), out, [])  # without a number: always
    assert out == events(1, 2, 3, 5, 4, 5)
    assert step.decoder.repeated == 3
    assert merge.breaches() == []


def test_numbers_begin_anew_with_an_incarnation_and_outlive_a_snapshot() -> None:
    fed = Fed()
    assert fed.take(numbered(1, 2, 3)) == events(1, 2, 3)
    restored = Fed()
    for kind, partition, data in fed.step.parts():
        restored.step.restore(kind, partition, data)
    assert restored.take(numbered(2, 3, 4)) == events(4)
    assert fed.take(numbered(1, 2, incarnation=1)) == []  # the same events, by their new life
    assert fed.step.decoder.repeated == 0
    assert fed.take(numbered(1, 2, 4, incarnation=1)) == events(4)
    assert fed.step.decoder.repeated == 2


def test_a_numbered_stable_that_had_to_wait_counts_when_it_is_read_again() -> None:
    fed, judge = Fed(), Judged(at_50=Ruling.WAIT)
    batch = numbered(1, 2)
    batch[1].value = encode(Stable(50))
    assert judged(fed, judge, batch) == (10, events(1))
    judge.rulings.clear()
    out: list[Element] = []
    fed.step.take(0, batch[1:], out, [], guards=judge)
    assert out == [Stable(50)]
    assert fed.step.decoder.repeated == 0


def test_only_the_last_chunk_is_remembered_for_its_late_elements() -> None:
    """Readers, files and Spark never ask for them: nothing may grow."""
    fed, old, new = Fed(), insert("old", 1, 2), insert("new", 60, 99)
    fed.merge.attach("other")
    fed.merge.process("other", Stable(50))
    for _ in range(3):
        fed.take(records(old))
        assert fed.step.late == [[old]]
    fed.take(records(new))
    assert fed.step.late == []


@pytest.mark.parametrize("value", [b"0", b"-1", b"x", b"", b"1.5"])
def test_a_number_that_is_none_makes_a_dead_letter(value: bytes) -> None:
    fed = Fed()
    batch = records(insert("a", 1, 9))
    batch[0].headers = [(SEQ_HEADER, value)]
    assert fed.take(batch) == []
    assert [letter.reason for letter in fed.dead] == ["header"]
