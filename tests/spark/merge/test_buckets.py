"""Buckets and their store, without Spark: whatever the batches, the workers and the failures, a
bucket emits what the plain operator emits, and what is stored costs what changes."""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pandas as pd  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.tws_tester import TwsTester

from lmerge_service.config.topology import Topology
from lmerge_service.core import Policy
from lmerge_service.elements import INFINITY, Adjust, Element, Insert, Stable
from lmerge_service.errors import StateError
from lmerge_service.formats.headers import INCARNATION_HEADER, SEQ_HEADER, incarnation_headers
from lmerge_service.formats.repeats import content_of
from lmerge_service.formats.wire import WireDecoder, encode
from lmerge_service.kafka.source import TopicPartition
from lmerge_service.merge.decisions.records import (
    AcceptGap,
    Attach,
    Decision,
    Detach,
    Quarantine,
    Release,
)
from lmerge_service.merge.decisions.records import encode as decision_record
from lmerge_service.merge.decoding import DecodedRecord
from lmerge_service.merge.findings import evidence
from lmerge_service.spark.merge.bucket import Bucket, BucketResult
from lmerge_service.spark.merge.chunks import packed, slices, unpacked
from lmerge_service.spark.merge.packing import Run, Tools, rule_of, shares
from lmerge_service.spark.merge.plan import MergePlan, Work
from lmerge_service.spark.merge.planning import Planned, next_step
from lmerge_service.spark.merge.processor import MergeProcessor, merged
from lmerge_service.tdb import TDB, Event, reconstitute
from tests.engines import ENGINES
from tests.formats.strategies import elements as any_elements
from tests.spark.merge.batches import (
    Batch,
    Memory,
    bucket_of,
    chunks_for,
    decided,
    fresh_cache,
    in_bytes,
    partitioned,
    planned,
    seen_of,
    the_plain_operator,
    topology_of,
    work_for,
)
from tests.strategies import logical_streams, lying_presentations, presentations

CASES = ("R0", "R1", "R2", "R3", "R4")
POLICIES = (
    Policy(),
    Policy(insert="leader", adjust="eager"),
    Policy(insert="half_frozen", stable="lag(3)"),
    Policy(insert="quorum(0.5)", adjust="leader", stable="quorum(2)"),
)
NAMES = "abc"
ANY_VALUE = st.sampled_from([None, b"junk", b'{"op":"stable", "vc":7}'])


@pytest.fixture(autouse=True, params=ENGINES, scope="module")
def engine(request: pytest.FixtureRequest) -> Iterator[str]:
    """What merges, as far as it knows the case and policy."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LMERGE_ENGINE", request.param)
        yield str(request.param)


@st.composite
def merges(draw: st.DrawFn) -> tuple[Topology, dict[str, int], list[Batch]]:
    """A topology, its replicas' widths, and what they publish in batches."""
    case, policy = draw(st.sampled_from(CASES)), draw(st.sampled_from(POLICIES))
    logical = draw(logical_streams(unique_keys=case != "R4", unique_vs=case == "R0"))
    drawn_from = lying_presentations if draw(st.booleans()) else presentations
    streams = draw(drawn_from(logical, len(NAMES), case))
    wide = case in ("R3", "R4")
    widths = {name: draw(st.integers(1, 3 if wide else 1)) for name in NAMES}
    topology = topology_of(
        NAMES,
        case=case,
        buckets=draw(st.integers(1, 3)),
        policy={"insert": policy.insert, "adjust": policy.adjust, "stable": policy.stable},
    )
    records: dict[tuple[str, int], list[DecodedRecord]] = {}
    for name, elements in zip(NAMES, streams, strict=True):
        for number, published in enumerate(partitioned(elements, widths[name])):
            records[f"t.{name}", number] = published
    return topology, widths, list(draw(cut(records)))


@st.composite
def cut(draw: st.DrawFn, records: dict[tuple[str, int], list[DecodedRecord]]) -> list[Batch]:
    """The records in one to five batches."""
    count = draw(st.integers(1, 5))
    batches: list[dict[tuple[str, int], Sequence[DecodedRecord]]] = [{} for _ in range(count)]
    for place, published in records.items():
        ends = sorted(
            draw(st.lists(st.integers(0, len(published)), min_size=count - 1, max_size=count - 1))
        )
        for batch, start, end in zip(batches, [0, *ends], [*ends, len(published)], strict=True):
            if start < end:
                batch[place] = published[start:end]
    return list(batches)


@given(merges(), st.data())
def test_a_bucket_emits_what_the_plain_operator_emits(
    drawn: tuple[Topology, dict[str, int], list[Batch]], data: st.DataObject
) -> None:
    """Of two workers either may be given the next batch; any batch may fail once it was merged,
    before it is committed, and is run again; snapshots come now and then."""
    topology, widths, batches = drawn
    plan, _ = planned(topology, widths)
    work, workers = work_for(topology, plan), (fresh_cache(), fresh_cache())
    least_log = data.draw(st.sampled_from((0, 300, 1 << 20)), "least log")
    for number in range(topology.output.partitions):
        memory, emitted_before, undisturbed = Memory(), 0, bucket_of(work, number)
        expected = the_plain_operator(topology, widths, batches, number)
        for at, (batch, elements) in enumerate(zip(batches, expected, strict=True)):
            for real in (False, True) if data.draw(st.booleans(), "fails") else (True,):
                chunks = chunks_for(work, batch, number, at, data.draw(st.integers(1, 7), "piece"))
                used = memory if real else memory.copy()
                worker = data.draw(st.sampled_from(workers), "worker")
                if data.draw(st.integers(0, 9), "died") == 0:
                    worker.clear()
                chunks = data.draw(st.permutations(chunks), "order")
                _, result = merged(
                    used,
                    plan,
                    number,
                    lambda number=number: bucket_of(work, number),  # type: ignore[misc]
                    at,
                    chunks,
                    cache=worker,
                    least_log=least_log,
                )
                assert [*result.elements] == elements
                assert result.first == emitted_before + 1
            chunks = chunks_for(work, batch, number, at, 5)
            assert result.found == undisturbed.apply(at, map(unpacked, chunks)).found
            emitted_before += len(elements)


@given(merges())
def test_honest_replicas_are_merged_into_what_they_mean(
    drawn: tuple[Topology, dict[str, int], list[Batch]],
) -> None:
    """The union over the buckets is a legal stream in each, whatever the replicas publish."""
    topology, widths, batches = drawn
    plan, _ = planned(topology, widths)
    work = work_for(topology, plan)
    for number in range(topology.output.partitions):
        memory, cache, out = Memory(), fresh_cache(), list[Element]()
        for at, batch in enumerate(batches):
            chunks = chunks_for(work, batch, number, at, 3)
            bucket, result = merged(
                memory,
                plan,
                number,
                lambda number=number: bucket_of(work, number),  # type: ignore[misc]
                at,
                chunks,
                cache=cache,
            )
            bucket.state.merge.check()
            out += result.elements
        reconstitute(out)  # raises where it is not legal


@given(merges())
def test_sparks_processor_emits_the_same(
    drawn: tuple[Topology, dict[str, int], list[Batch]],
) -> None:
    topology, widths, batches = drawn
    plan, _ = planned(topology, widths)
    work = work_for(topology, plan)
    processor = Numbered(work)
    tester = TwsTester(processor)
    decoder = WireDecoder()
    for number in range(topology.output.partitions):
        expected = the_plain_operator(topology, widths, batches, number)
        last = 0
        for at, (batch, elements) in enumerate(zip(batches, expected, strict=True)):
            processor.number = at
            chunks = chunks_for(work, batch, number, at, 5)
            rows = pd.DataFrame({"bucket": number, "chunk": chunks})
            found = tester.testInPandas(number, rows) if chunks else pd.DataFrame()
            if not chunks:
                assert elements == []
                continue
            found = found if found.empty else found[found["target"].isna()]
            values = [] if found.empty else list(found["value"])
            assert [decoder.decode(each) for each in values] == elements
            if values:
                assert list(found["seq"]) == list(range(last + 1, last + len(values) + 1))
                assert set(found["partition"]) == {number}
            last += len(values)


class Numbered(MergeProcessor):
    """Outside of Spark nothing else knows which batch it is."""

    number = 0

    def batch(self) -> int:
        return self.number


# --- literal ------------------------------------------------------------------------------------


def records_of(*elements: Element, start: int = 0, headers: Any = ()) -> list[DecodedRecord]:
    emitted = [encode(in_bytes(element)) for element in elements]
    return [DecodedRecord(start + at, b"k", value, headers, 1) for at, value in enumerate(emitted)]


def fed(work: Work, number: int, chunks: list[bytes]) -> tuple[Bucket, BucketResult]:
    """A new bucket after its first batch."""
    fresh = bucket_of(work, number)
    return merged(Memory(), work.plan, number, lambda: fresh, 0, chunks, cache=fresh_cache())


class Running:
    """One bucket, batch by batch."""

    def __init__(self, topology: Topology, plan: MergePlan) -> None:
        self.topology, self.memory, self.cache = topology, Memory(), fresh_cache()
        self.next = 0
        self.emitted: list[Element] = []
        self.work: Work = work_for(topology, plan)
        self.dead: list[Any] = []

    def go_on(self, plan: MergePlan) -> None:
        self.work = work_for(self.topology, plan)

    def batch(self, batch: Batch) -> list[Element]:
        chunks = chunks_for(self.work, batch, 0, self.next, 10)
        self.bucket, result = merged(
            self.memory,
            self.work.plan,
            0,
            lambda: bucket_of(self.work, 0),
            self.next,
            chunks,
            cache=self.cache,
        )
        self.next += 1
        self.found = result.found
        self.dead += result.dead
        self.emitted += result.elements
        return [*result.elements]


A, B, C = Insert("A", 2, 9), Insert("B", 5, 20), Insert("C", 30, 40)


def test_a_replica_is_attached_and_another_detached_from_a_batch_on() -> None:
    topology, widths = topology_of("ab"), {"a": 1, "b": 1, "c": 1}
    plan, ledger = planned(topology, widths)
    running = Running(topology, plan)
    running.batch({("t.a", 0): records_of(A, Stable(10)), ("t.b", 0): records_of(A)})
    with_c = decided(
        plan, ledger, widths, Attach({"name": "c", "topic": "t.c"}), Detach("a"), batch=2
    )
    assert set(with_c.steps[-1].topics) == {"t.b", "t.c"}
    running.go_on(with_c)
    running.batch({("t.c", 0): records_of(A, B)})
    assert set(running.bucket.state.merge.inputs) == {"a", "b"}  # batch 1 was planned before
    emitted = running.batch({("t.c", 0): records_of(C, Stable(10), Stable(25))})
    assert emitted == [in_bytes(C), Stable(25)]
    assert set(running.bucket.state.merge.inputs) == {"b", "c"}


def test_a_worker_that_has_missed_a_batch_merges_it_by_the_steps_of_then() -> None:
    """Also by those that it has not met yet."""
    topology, widths = topology_of("ab"), {"a": 1, "b": 1, "c": 1}
    plan, ledger = planned(topology, widths)
    running = Running(topology, plan)
    running.batch({("t.a", 0): records_of(A), ("t.b", 0): records_of(A)})
    running.go_on(decided(plan, ledger, widths, Attach({"name": "c", "topic": "t.c"}), batch=1))
    one, running.cache = running.cache, fresh_cache()
    assert running.batch({("t.c", 0): records_of(B)}) == [in_bytes(B)]
    running.cache = one
    assert running.batch({("t.b", 0): records_of(B, start=1)}) == [], "it is out already"


def test_a_bucket_goes_on_from_its_state_when_the_steps_before_are_folded() -> None:
    """As it does with all steps; a worker whose bucket is older, or that has none, begins with what
    is stored."""
    topology, widths = topology_of("ab"), {"a": 1, "b": 1, "c": 1, "d": 1}
    plan, ledger = planned(topology, widths)
    running, old = Running(topology, plan), fresh_cache()
    running.batch({("t.a", 0): records_of(A), ("t.b", 0): records_of(A)})
    running.cache, old = fresh_cache(), running.cache
    attach = Attach({"name": "c", "topic": "t.c"})
    plan = decided(plan, ledger, widths, attach, Detach("b"), batch=1).with_due()
    running.go_on(plan)
    assert running.batch({("t.c", 0): records_of(B)}) == [in_bytes(B)]
    plan = decided(plan, ledger, widths, Attach({"name": "d", "topic": "t.d"}), batch=2)
    whole, plan = plan, plan.fold(topology, 7)
    memory, later = running.memory, {("t.d", 0): records_of(A, C), ("t.b", 0): records_of(C)}
    for each, cache in [(whole, fresh_cache()), (plan, fresh_cache()), (plan, old)]:
        running.go_on(each)
        running.memory, running.cache, running.next = memory.copy(), cache, 2
        assert running.batch(later) == [in_bytes(C)]
        assert set(running.bucket.state.merge.inputs) == {"a", "c", "d"}
        assert running.bucket.ledger.state() == ledger.state()
    running.memory, running.cache = Memory(), fresh_cache()
    with pytest.raises(StateError, match="it has no state of bucket 0, and the plan begins at st"):
        running.batch(later)


def test_a_topic_is_dropped_before_it_is_begun_once_more() -> None:
    topology, widths = topology_of("ab"), {"a": 1, "b": 1}
    plan, ledger = planned(topology, widths)
    everything = ["t.a", "t.b"]
    out = decided(plan, ledger, widths, Quarantine("b", "looks odd"), batch=3, known=everything)
    assert set(out.steps[-1].topics) == {"t.a"}
    back = decided(out, ledger, widths, Release("b"), batch=4, known=everything)
    assert set(back.steps[-1].topics) == {"t.a"}  # Spark would go on where it was
    assert decided(back, ledger, widths, batch=4, known=everything) is back
    begun = decided(back, ledger, widths, batch=5, known=["t.a"])
    assert set(begun.steps[-1].topics) == {"t.a", "t.b"}
    assert set(begun.steps[-1].begins) == {"b"}
    running = Running(topology, plan)
    running.batch({("t.a", 0): records_of(A), ("t.b", 0): records_of(A, Insert("lie", 3, 8))})
    running.go_on(begun)
    running.next = 3
    running.batch({("t.a", 0): records_of(Insert("D", 4, 7), start=1)})
    assert set(running.bucket.state.merge.inputs) == {"a"}
    running.next = 5
    running.batch({("t.b", 0): records_of(A, B)})
    assert set(running.bucket.state.merge.inputs) == {"a", "b"}


def test_a_topic_that_was_made_anew_is_merged_from_its_beginning() -> None:
    topology, widths = topology_of("ab"), {"a": 1, "b": 1}
    plan, ledger = planned(topology, widths)
    running = Running(topology, plan)
    running.batch({("t.a", 0): records_of(A, B), ("t.b", 0): records_of(A)})
    from lmerge_service.kafka.topics import TopicInfo
    from lmerge_service.spark.merge.planning import Planned, next_step
    from tests.spark.merge.batches import seen_of

    seen = seen_of(widths)
    seen.topics = {**seen.topics, "t.a": TopicInfo("another", 1)}
    step = next_step(plan, ledger, seen, Planned(1, {"t.a": {0: 2}, "t.b": {0: 1}}))
    assert step is not None
    assert (set(step.gone), set(step.topics)) == ({"a"}, {"t.b"})
    plan = plan.with_step(step)
    step = next_step(plan, ledger, seen, Planned(2, {"t.b": {0: 1}}))
    assert step is not None
    assert (step.gone, set(step.begins)) == ({}, {"a"})
    running.go_on(plan.with_step(step))
    running.batch({("t.b", 0): records_of(Insert("D", 4, 7), start=1)})
    assert set(running.bucket.state.merge.inputs) == {"b"}
    emitted = running.batch({("t.a", 0): records_of(A, B, Stable(25))})
    assert emitted[-1] == Stable(25)
    assert running.bucket.state.replicas.states["a"].topic_id == "another"


def test_an_accepted_gap_is_reported_with_the_batch() -> None:
    topology = topology_of("a", replicas=[{"name": "a", "topic": "t.a", "joining_at": 50}])
    plan, ledger = planned(topology, {"a": 1})
    running = Running(topology, plan)
    assert running.batch({("t.a", 0): records_of(Stable(60))}) == []
    running.go_on(decided(plan, ledger, {"a": 1}, AcceptGap("a", 50), batch=1))
    assert running.batch({("t.a", 0): records_of(Stable(70), start=1)}) == [Stable(60), Stable(70)]


def test_n16_breaches_are_counted_and_reported_with_their_place() -> None:
    """Of many of one kind, those whose count has reached a power of two."""
    topology = topology_of("ab")
    plan, _ = planned(topology, {"a": 1, "b": 1})
    running = Running(topology, plan)
    running.batch({("t.a", 0): records_of(A, Stable(5)), ("t.b", 0): records_of(B)})
    assert running.found.breaches == {}
    assert running.found.evidence == []

    running.batch({("t.b", 0): records_of(Adjust("C", 8, 20, 30), Stable(7), start=1)})
    assert running.found.breaches == {("b", "unknown_event"): 1, ("b", "half_frozen_missing"): 1}
    unknown, divergence = running.found.evidence
    assert (unknown.kind, unknown.replica, unknown.count) == ("unknown_event", "b", 1)
    assert (unknown.action, unknown.task, unknown.id) == ("report", 0, "0-2-0")
    assert unknown.first is not None
    assert (unknown.first.topic, unknown.first.partition, unknown.first.offset) == ("t.b", 0, 1)
    assert unknown.first.record == encode(in_bytes(Adjust("C", 8, 20, 30))).decode()
    assert (divergence.kind, divergence.replica, divergence.id) == ("divergence", "b", "0-2-1")
    assert divergence.first is not None
    assert divergence.first.offset == 2
    assert (divergence.payload, divergence.vs) == ('"A"', 2)
    assert divergence.output == evidence.ReportedVersion(7, (9,))
    assert divergence.replicas == {
        "a": evidence.ReportedVersion(5, (9,)),
        "b": evidence.ReportedVersion(7, ()),
    }

    counts = []
    for offset in range(3, 12):
        running.batch({("t.b", 0): records_of(Insert("A", 3, 4), start=offset)})
        assert running.found.breaches == {("b", "broke_own_stable"): 1}
        counts += [each.count for each in running.found.evidence]
    assert counts == [1, 2, 4, 8]


def test_n16_more_breaches_than_the_operator_keeps_are_counted() -> None:
    topology = topology_of("ab")
    plan, _ = planned(topology, {"a": 1, "b": 1})
    running = Running(topology, plan)
    running.batch({("t.a", 0): records_of(*(Insert(f"{n}", n, n + 5) for n in range(3_000)))})
    adjusts = (Adjust(f"{n}", n, n + 5, n + 7) for n in range(2_000))
    running.batch({("t.b", 0): records_of(*adjusts)})
    assert running.found.breaches == {("b", "unknown_event"): 2_000}
    [found] = running.found.evidence
    assert found.count == 2_000


def test_a_joining_time_says_nothing_of_what_a_topic_has_left_when_more_of_it_is_gone() -> None:
    topology, widths = topology_of("ab"), {"a": 1, "b": 1, "c": 1}
    plan, ledger = planned(topology, widths)
    running = Running(topology, plan)
    running.batch({("t.b", 0): records_of(A, Stable(10))})
    joining = Attach({"name": "c", "topic": "t.c", "joining_at": 20})
    plan = decided(plan, ledger, widths, joining, batch=1, known="ab")
    running.go_on(plan)
    running.batch({("t.c", 0): records_of(B)})
    plan = decided(plan, ledger, widths, Quarantine("c", "it is looked at"), batch=2)
    running.go_on(plan)
    running.batch({("t.b", 0): records_of(B, start=2)})
    assert "c" not in running.bucket.state.replicas.merged
    value = decision_record(Decision("again", Release("c"), "anna", made=0))
    ledger.fold(ledger.offset, value)
    seen = seen_of(widths, [value])
    seen.beginnings[TopicPartition("t.c", 0)] = 1  # type: ignore[index]
    step = next_step(plan, ledger, seen, Planned(3, {}))
    assert step is not None
    running.go_on(plan.with_step(step))
    running.batch({("t.b", 0): records_of(Stable(15), start=3)})
    [found] = running.found.evidence
    assert (found.kind, found.replica) == ("excluded", "c")
    assert found.reason.startswith("topic t.c begins at offset 1 of partition 0, and began at 0")


def test_n15_who_has_lost_records_is_reported_with_the_batch_from_which_it_is_excluded() -> None:
    topology = topology_of("ab")
    plan, ledger = planned(topology, {"a": 1, "b": 1})
    running = Running(topology, plan)
    running.batch({("t.a", 0): records_of(A), ("t.b", 0): records_of(A)})
    seen = seen_of({"a": 1, "b": 1})
    seen.beginnings[TopicPartition("t.a", 0)] = 9  # type: ignore[index]
    step = next_step(plan, ledger, seen, Planned(1, {"t.a": {0: 1}, "t.b": {0: 1}}))
    assert step is not None
    running.go_on(plan.with_step(step))
    assert running.batch({("t.b", 0): records_of(B, Stable(10), start=1)}) == [
        in_bytes(B),
        Stable(10),
    ]
    assert "a" not in running.bucket.state.replicas.merged
    [found] = running.found.evidence
    assert (found.kind, found.replica, found.id) == ("excluded", "a", "0-2-0")
    assert found.reason.startswith("topic t.a partition 0 begins at offset 9, and 1 is the next")


def test_what_is_no_element_is_a_dead_letter_once_in_one_bucket() -> None:
    topology, widths = topology_of("a", buckets=2), {"a": 3}
    plan, _ = planned(topology, widths)
    work = work_for(topology, plan)
    poison = [DecodedRecord(0, b"key", b"nonsense", (), 7), DecodedRecord(1, None, None, (), 8)]
    batch = {("t.a", partition): poison for partition in range(3)}
    found = []
    for number in range(2):
        chunks = chunks_for(work, batch, number, 0, 10)
        _, result = fed(work, number, chunks)
        found += [(each.partition, each.offset, each.reason, each.key) for each in result.dead]
    assert sorted(found, key=str) == sorted(
        [
            (partition, offset, reason, key)
            for partition in range(3)
            for offset, reason, key in ((0, "not_json", b"key"), (1, "tombstone", None))
        ],
        key=str,
    )


def test_what_was_decoded_to_route_it_goes_as_its_element() -> None:
    """With its number's content, and without its value, but for one that joins late."""
    topology, widths = topology_of("a", buckets=2), {"a": 1}
    plan, _ = planned(topology, widths)
    work = work_for(topology, plan)
    events = [Insert(f"e{n}", n, 99) for n in range(60, 80)]
    adjusts = [Adjust(f"e{n}", n, 99, n) for n in range(70, 80)]
    for headers in ([], [(SEQ_HEADER, b"7")], incarnation_headers(1, 50)):
        records = records_of(*events, Stable(55), *adjusts, headers=headers)
        seen: list[DecodedRecord] = []
        for number in range(2):
            chunks = chunks_for(work, {("t.a", 0): records}, number, 0, 100)
            for _, _, some in slices(map(unpacked, chunks)):
                seen += some
        assert {each.offset for each in seen} == set(range(31))
        shared = 1 + bool(headers and headers[0][0] == INCARNATION_HEADER)
        assert len(seen) == 31 + shared, "a stable is for both, and the first of an incarnation"
        for each in seen:
            value = records[each.offset].value
            assert each.element == WireDecoder().decode(value)
            assert each.text == value
            assert each.value == (value if shared > 1 else None)
            numbered = content_of(value) if headers and shared == 1 else None
            assert each.content == numbered


def test_a_normalised_replica_that_joins_late_is_a_dead_letter_with_its_value() -> None:
    topology = topology_of("a", buckets=2)
    normalised = topology.replicas[0].model_copy(update={"normalise": True})
    topology = topology.model_copy(update={"replicas": (normalised,)})
    plan, _ = planned(topology, {"a": 1})
    work = work_for(topology, plan)
    [record] = records_of(A, headers=incarnation_headers(1, 50))
    spaced = msgspec.structs.replace(record, value=b" " + (record.value or b""))
    dead = [
        letter
        for number in range(2)
        for letter in fed(work, number, chunks_for(work, {("t.a", 0): [spaced]}, number, 0, 10))[
            1
        ].dead
    ]
    assert [(each.reason, each.key, each.value) for each in dead] == [
        ("header", b"k", spaced.value)
    ]


def test_a_replica_that_starts_over_and_one_that_repeats_itself() -> None:
    topology, widths = topology_of("ab"), {"a": 1, "b": 1}
    plan, _ = planned(topology, widths)
    running = Running(topology, plan)
    sent: list[tuple[int, Element]] = [(1, A), (2, B), (1, A), (2, B), (3, Stable(4))]
    numbered = [
        DecodedRecord(at, b"k", encode(in_bytes(each)), [(SEQ_HEADER, b"%d" % seq)], 1)
        for at, (seq, each) in enumerate(sent)
    ]
    emitted = running.batch({("t.b", 0): numbered})
    assert emitted == [in_bytes(A), in_bytes(B), Stable(4)]
    assert running.bucket.state.replicas.states["b"].step.decoder.repeated == 2  # type: ignore[union-attr]
    running.batch({("t.a", 0): records_of(A, Insert("old", 8, 9))})
    again = records_of(A, B, start=2, headers=incarnation_headers(1))
    running.batch({("t.a", 0): again})
    assert running.bucket.state.replicas.states["a"].step.decoder.incarnation == 1  # type: ignore[union-attr]


def test_a_dialect_and_a_normalised_replica() -> None:
    pieces: list[Element] = [Insert("b", 1, 7), Insert("b", 7, 15), Stable(INFINITY)]
    opened = [
        b'{"op":"open","payload":"b","vs":1}',
        b'{"op":"close","payload":"b","vs":1,"ve":15}',
        b'{"op":"stable","vc":null}',
    ]
    replicas = [
        {"name": "a", "topic": "t.a", "normalise": True},
        {
            "name": "b",
            "topic": "t.b",
            "format": {"dialect": "openclose"},
        },
    ]
    try:
        topology = topology_of("ab", replicas=replicas, buckets=2)
    except ValueError as error:
        pytest.fail(str(error))
    plan, _ = planned(topology, {"a": 1, "b": 1})
    kinds = plan.steps[0].topics
    assert (kinds["t.a"].wire, kinds["t.b"].wire) == (True, False)
    work = work_for(topology, plan)
    batch = {
        ("t.a", 0): records_of(*pieces),
        ("t.b", 0): [DecodedRecord(at, None, value, (), 1) for at, value in enumerate(opened)],
    }
    events: list[Event] = []
    for number in range(2):
        chunks = chunks_for(work, batch, number, 0, 2)
        _, result = fed(work, number, chunks)
        assert result.dead == []
        events += reconstitute(result.elements)
    assert events == [Event(b'"b"', 1, 15)]


@pytest.mark.parametrize("seen", [True, False])
def test_n13_rows_that_are_known_by_partition_are_let_go_when_their_topic_gets_wider(
    seen: bool,
) -> None:
    """Whether the job has seen the topic get wider, or a record shows it; also after a restart."""
    row = b'{"id":1,"n":"%b"}'
    form = {"dialect": "upserts", "stable": {"lateness": 0}}
    replicas = [{"name": "a", "topic": "t.a"}, {"name": "b", "topic": "t.b", "format": form}]
    topology = topology_of("ab", replicas=replicas)
    plan, ledger = planned(topology, {"a": 1, "b": 1})
    running = Running(topology, plan)
    running.batch({("t.b", 0): [DecodedRecord(0, b"1", row % b"A", (), 1000)]})
    if seen:
        running.go_on(decided(plan, ledger, {"a": 1, "b": 2}, batch=1, known=["t.a", "t.b"]))
    running.batch({("t.b", 1): [DecodedRecord(0, b"1", row % b"B", (), 2000)]})
    running.cache.clear()
    running.batch({("t.b", 1): [DecodedRecord(1, b"1", None, (), 3000)]})
    state = running.bucket.state.replicas.states["b"]
    assert state.step is None
    assert "got 2 partitions, 1 before" in (state.quarantined or "")
    elements: list[Element] = [Insert({"id": 1, "n": "A"}, 1000, INFINITY), Stable(1000)]
    running.batch({("t.a", 0): records_of(*elements, Stable(INFINITY))})
    assert reconstitute(running.emitted) == TDB([(row % b"A", 1000, INFINITY)])


def test_n13_a_key_in_two_partitions_is_noticed_by_a_bucket() -> None:
    form = {"dialect": "upserts", "stable": {"lateness": 0}}
    topology = topology_of("a", replicas=[{"name": "a", "topic": "t.a", "format": form}])
    plan, _ = planned(topology, {"a": 2})
    running = Running(topology, plan)
    running.batch({("t.a", 0): [DecodedRecord(0, b"1", b'{"id":1}', (), 1000)]})
    running.batch({("t.a", 1): [DecodedRecord(0, b"1", None, (), 3000)]})
    running.batch({("t.a", 0): [DecodedRecord(1, b"1", b'{"id":2}', (), 4000)]})
    state = running.bucket.state.replicas.states["a"]
    assert "has key '1' at offset 0 of partition 1" in (state.quarantined or "")
    assert reconstitute(running.emitted) == TDB([(b'{"id":1}', 1000, INFINITY)])


def test_what_is_stored_costs_what_changes() -> None:
    """With 2,000 and with 8,000 live events, small batches write about the same."""
    topology, widths = topology_of("a"), {"a": 1}

    def written(live: int) -> int:
        plan, _ = planned(topology, widths)
        running = Running(topology, plan)
        many: list[Element] = [Insert(f"event {n}", n, INFINITY) for n in range(live)]
        running.batch({("t.a", 0): records_of(*many)})
        before = running.memory.written
        for n in range(20):
            records = records_of(Insert(f"new {n}", live + n, INFINITY), start=live + n)
            running.batch({("t.a", 0): records})
        return running.memory.written - before

    few, many = written(2_000), written(8_000)
    assert many < 1.2 * few < 20 * 1_000


def test_a_worker_that_is_behind_reads_what_it_lacks() -> None:
    """And nothing else: neither the snapshot nor the batches that it has merged."""
    topology, widths = topology_of("a"), {"a": 1}
    plan, _ = planned(topology, widths)
    running = Running(topology, plan)
    workers = [fresh_cache(), fresh_cache()]
    for n in range(30):
        running.cache = workers[n in (0, 9, 20)]
        running.memory.read.clear()
        running.batch({("t.a", 0): records_of(Insert(f"{n}", n, 99), start=n)})
        if n == 20:
            # Batch n stands in entry n - 1; that of batch 9 shows that it is merged.
            assert set(running.memory.read) == {("log", number) for number in range(8, 19)}
    assert running.emitted == [in_bytes(Insert(f"{n}", n, 99)) for n in range(30)]


def test_damaged_state_is_refused() -> None:
    topology, widths = topology_of("a"), {"a": 1}
    plan, _ = planned(topology, widths)
    running = Running(topology, plan)
    running.batch({("t.a", 0): records_of(A)})
    running.batch({("t.a", 0): records_of(B, start=1)})
    running.cache.clear()
    whole = running.memory.copy()
    running.memory.log.clear()
    with pytest.raises(StateError, match="entry 0 is missing"):
        running.batch({("t.a", 0): records_of(C, start=2)})
    running.memory = whole
    running.memory.pages[0] = running.memory.pages[0][:-9]
    with pytest.raises(StateError, match="damaged"):
        running.batch({("t.a", 0): records_of(C, start=2)})


@given(st.lists(st.integers(1, 50), min_size=1, max_size=6), st.integers(1, 9), st.randoms())
def test_slices_do_not_depend_on_how_records_were_packed(
    engine: str, sizes: list[int], piece: int, random: Any
) -> None:
    topology = topology_of("a")
    plan, _ = planned(topology, {"a": len(sizes)})
    work = work_for(topology, plan)
    batch = {
        ("t.a", n): records_of(*[Insert(f"{n} {m}", m, 99) for m in range(size)])
        for n, size in enumerate(sizes)
    }
    whole = [packed(unpacked(each)) for each in chunks_for(work, batch, 0, 0, 1_000)]
    parts = chunks_for(work, batch, 0, 0, piece)
    random.shuffle(parts)
    in_pieces = list(slices(map(unpacked, parts)))
    assert list(slices(map(unpacked, whole))) == in_pieces
    if engine == "native":
        natively = slices([unpacked(each, native=True) for each in parts])
        assert [(topic, at, [*some]) for topic, at, some in natively] == in_pieces


@given(
    st.lists(any_elements(), max_size=5),
    st.integers(1, 3),
    st.integers(-(2**62), 2**62),
    st.lists(ANY_VALUE, max_size=2),
)
def test_the_engine_packs_what_python_packs(
    engine: str, some: list[Element], buckets: int, offset: int, others: list[bytes | None]
) -> None:
    """Byte for byte, so that a bucket of either engine takes over the other's."""
    if engine != "native":
        return
    topology = topology_of("a", buckets=buckets)
    plan, _ = planned(topology, {"a": 1})
    values = [*map(encode, some), *others]
    at = [offset + 3 * n for n in range(len(values))]
    nothing: list[Any] = [None] * len(values)
    run = Run("t.a", 0, at, [*values], nothing, [0] * len(values))
    kind, rule = plan.topics_at(0)["t.a"], rule_of(work_for(topology, plan))
    by_either = [
        [
            (bucket, packed(chunk))
            for bucket, chunk in shares(kind, buckets, run, Tools(rule, buckets, (), native=native))
            if chunk.kinds
        ]
        for native in (False, True)
    ]
    assert by_either[0] == by_either[1]


def test_tdb_of_several_buckets() -> None:
    """Each bucket has its own events, and all have the stables."""
    topology, widths = topology_of("ab", buckets=3), {"a": 2, "b": 1}
    plan, _ = planned(topology, widths)
    work = work_for(topology, plan)
    events = [Insert(f"event {n}", n, n + 10) for n in range(60)]
    elements: list[Element] = [*events, Stable(INFINITY)]
    batch = {
        **{("t.a", n): published for n, published in enumerate(partitioned(elements, 2))},
        ("t.b", 0): partitioned(elements, 1)[0],
    }
    found: list[Event] = []
    for number in range(3):
        chunks = chunks_for(work, batch, number, 0, 7)
        _, result = fed(work, number, chunks)
        assert result.elements[-1] == Stable(INFINITY)
        some = list(reconstitute(result.elements))
        assert some
        found += some
    assert TDB(found) == TDB(Event(*_fields(in_bytes(each))) for each in events)


def _fields(element: Element) -> tuple[Any, int, int]:
    assert isinstance(element, Insert)
    return element.payload, element.vs, element.ve
