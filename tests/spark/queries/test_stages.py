"""Stages against what queries mean, whatever batches, tasks, late facts, restarts; no Spark."""

from collections.abc import Sequence
from random import Random
from typing import Any, NamedTuple

import msgspec
import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
import pytest
from pyspark.sql.streaming.tws_tester import TwsTester

from lmerge_service.elements import Element, Insert, Stable
from lmerge_service.errors import StateError
from lmerge_service.formats.feedback import FeedbackRecord
from lmerge_service.formats.headers import INCARNATION_HEADER, SEQ_HEADER
from lmerge_service.formats.wire import WireDecoder, encode
from lmerge_service.kafka.source import TopicPartition
from lmerge_service.queries import logical
from lmerge_service.queries.expressions import col, udf
from lmerge_service.queries.physical import Choice, physical
from lmerge_service.queries.plan import Query, count, tumbling
from lmerge_service.queries.properties import partition_columns
from lmerge_service.replicas.output_reader import OutputReader
from lmerge_service.replicas.own_output import OutputContent
from lmerge_service.spark.io.decoding import headers_of
from lmerge_service.spark.queries.compiling import FeedbackReader, Packing, SourceReader
from lmerge_service.spark.queries.held_output import held_rows
from lmerge_service.spark.queries.intake_bucket import Intake, IntakeBucket
from lmerge_service.spark.queries.moves import Points, Records, is_letters, packed, unpacked
from lmerge_service.spark.queries.stage_bucket import StageBucket, StageSettings
from lmerge_service.spark.queries.stage_processor import (
    StageProcessor,
    StageTask,
    Target,
    letter_columns,
)
from lmerge_service.spark.queries.stages import stages
from lmerge_service.spark.state import run
from tests.seeds import seeds
from tests.spark.merge.batches import Memory, fresh_cache
from tests.spark.queries.stage_runs import (
    QUERIES,
    Simulation,
    batches_of,
    departed,
    events_of,
    flights,
    hourly,
    meant,
    merged,
    query_of,
    random_topics,
    rows_as_records,
)


@seeds(20)
def test_stages_emit_what_the_query_means(seeds: range) -> None:
    for seed in seeds:
        rng = Random(seed)
        name = rng.choice([*QUERIES])
        query = QUERIES[name]
        topics = random_topics(rng, query, 25, rng.randrange(1, 4))
        emit: Any = rng.choice(("on_update", "on_watermark", "on_close"))
        chosen = {hourly: Choice(windows="panes")} if "over" in name else {}
        plan = physical(query, emit=emit, choices=chosen, align=rng.choice((None, 7)))
        simulation = Simulation(query_of(plan, topics, rng.randrange(1, 5)), rng)
        for batch in batches_of(topics, rng, 12):
            simulation.run(batch)
            if rng.random() < 0.3:
                simulation.restart()
        found = events_of(rows_as_records(query, simulation.streams))
        assert found == meant(query, topics), (seed, name)
        for buckets in simulation.buckets:
            for bucket in buckets:
                bucket.network.check()


def test_how_batches_are_cut_changes_no_state() -> None:
    """A batch that is run again, packed otherwise, emits the same with the same numbers."""
    for name, query in QUERIES.items():
        topics = random_topics(Random(name), query, 40)
        batches = batches_of(topics, Random(name), 15)
        streams = []
        for seed in range(2):
            simulation = Simulation(query_of(physical(query), topics, 3), Random(seed))
            for batch in batches:
                simulation.run(batch)
            streams.append(simulation.streams)
        assert streams[0] == streams[1], name


@seeds(10)
def test_a_bucket_goes_on_from_what_is_kept_whatever_dies(seeds: range) -> None:
    """Workers that lack batches, have others, or died; batches that fail and are run again."""
    for seed in seeds:
        rng = Random(seed)
        query = rng.choice([hourly, QUERIES["two branches"]])
        topics = random_topics(rng, query, 25)
        staged = query_of(physical(query), topics, 2)
        settings = StageSettings(staged.stages[0], staged.widths, staged.buckets)
        simulation = Simulation(staged, Random(seed))
        memories, workers = [Memory(), Memory()], [fresh_cache(), fresh_cache()]
        least_log = rng.choice((0, 300, 1 << 20))
        for batch in batches_of(topics, rng, 8):
            before = [len(stream) for stream in simulation.streams]
            simulation.run(batch)
            given = simulation.of_sources(0, batch)
            for number, chunks in enumerate(given):
                if not chunks:
                    continue
                for real in (False, True) if rng.random() < 0.3 else (True,):
                    memory = memories[number] if real else memories[number].copy()
                    worker = rng.choice(workers)
                    if rng.random() < 0.1:
                        worker.clear()
                    rng.shuffle(chunks)
                    bucket, result = run(
                        memory,
                        str(seed),
                        number,
                        lambda: StageBucket(settings),  # noqa: B023
                        0,
                        chunks,
                        cache=worker,
                        least_log=least_log,
                    )
                    assert result.first == before[number] + 1
                    assert result.elements == simulation.streams[number][before[number] :]
                    assert bucket.emitted == len(simulation.streams[number])


def test_a_source_that_gets_more_partitions_and_state_that_is_damaged_are_refused() -> None:
    topics = random_topics(Random(1), hourly, 9, 3)
    staged = query_of(physical(hourly), topics, 1)
    chunks = Simulation(staged, Random(1)).of_sources(0, batches_of(topics, Random(1), 99)[0])[0]
    narrow = StageBucket(StageSettings(staged.stages[0], {"flights": 2}, 1))
    with pytest.raises(StateError, match=r"^flights has more than the 2 partitions that it had"):
        narrow.take(0, chunks)
    bucket = StageBucket(StageSettings(staged.stages[0], staged.widths, 1))
    pages = b"".join(bucket.pages())
    with pytest.raises(StateError, match="damaged"):
        bucket.load([pages[:-1]], 0, ())
    other = query_of(physical(hourly, emit="on_close"), topics, 1)
    with pytest.raises(StateError, match="the snapshot is of the plan"):
        StageBucket(StageSettings(other.stages[0], staged.widths, 1)).load([pages], 0, ())


@seeds(4)
def test_the_processor_keeps_its_buckets_and_writes_what_they_emit(seeds: range) -> None:
    """Records of the last stage, with their numbers; what goes to it from the first; counts."""
    for seed in seeds:
        rng = Random(seed)
        query = QUERIES["windows over windows"]
        topics = random_topics(rng, query, 30)
        staged = query_of(physical(query), topics, 2)
        simulation, decoder = Simulation(staged, Random(seed)), WireDecoder()
        testers = []
        for number, stage in enumerate(staged.stages):
            target = Target("stage 0", ("n",)) if number == 0 else None
            task = StageTask(stage, staged.widths, staged.keys, f"{seed} {number}", target)
            testers.append([TwsTester(StageProcessor(task)) for _ in staged.keys])
        written: list[list[Element]] = [[], []]
        for batch in batches_of(topics, rng, 12):
            simulation.run(batch)
            given = simulation.of_sources(0, batch)
            passed: list[list[bytes]] = [[], []]
            for tester, key, chunks in zip(testers[0], staged.keys, given, strict=True):
                if chunks:
                    frame: Any = tester.testInPandas(key, pd.DataFrame({"chunk": chunks}))
                    for to, chunk in zip(frame["bucket"], frame["chunk"], strict=True):
                        if chunk is not None:
                            passed[staged.keys.index(to)].append(chunk)
            for at, chunks in enumerate(passed):
                if chunks:
                    rows = pd.DataFrame({"chunk": chunks})
                    frame = testers[1][at].testInPandas(staged.keys[at], rows)
                    counts = frame.iloc[-1]
                    assert counts["value"] is None
                    assert counts["late"] == 0
                    records = frame[:-1]
                    first = len(written[at]) + 1
                    assert [*records["seq"]] == [*range(first, first + len(records))]
                    assert {*records["partition"]} <= {at}
                    written[at] += map(decoder.decode, records["value"])
        assert written == rows_as_records(query, simulation.streams)


EXPECTED = {
    "selected": [("origin", "carrier")],
    "windows": [("origin", "carrier")],
    "windows of all": [()],
    "windows over windows": [("origin", "carrier"), ("n",)],
    "an aggregate of all": [("origin", "carrier"), ()],
    "three stages": [("origin", "carrier"), ("n",), ("m",)],
    "two branches": [("origin",)],
    "two sources": [("origin",)],
    "a diamond": [("origin",)],
    "no duplicates": [("origin",)],
    "of a merge": [("origin",)],
    "facts and elements": [("origin",)],
}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_plan_is_cut_where_its_columns_change(name: str) -> None:
    cut = stages(physical(QUERIES[name]), partition_columns)
    columns = [each.columns[0][1] for each in cut]
    if name == "selected":
        columns = [columns[0][1:3]]
    assert columns == EXPECTED[name]
    assert [each.stage for stage in cut for each in stage.upstreams] == [*range(len(cut) - 1)]
    [whole] = stages(physical(QUERIES[name]), partition_columns, divided=False)
    assert not whole.upstreams
    intakes = {"no duplicates": ["bookings"]}.get(name, ["merged"] if "merge" in name else [])
    intakes += ["merged"] if name == "facts and elements" else []
    assert [each.name for stage in cut for each in stage.intakes] == intakes


def test_a_prefix_ends_below_a_function_of_python_and_below_what_waits() -> None:
    called = departed.where(udf("math:isfinite", col.fare, returns=bool))
    [stage] = stages(physical(called), partition_columns)
    assert [len(each.prefix) for each in stage.branches] == [2]
    assert isinstance(stage.plan.plan, logical.Select)
    selected = flights.where(col.delay > 3)
    waiting = physical(selected.select("origin"), choices={selected: Choice(align=5)})
    [stage] = stages(waiting, partition_columns)
    assert [len(each.prefix) for each in stage.branches] == [1]
    assert [choice.align for _, choice in stage.plan.choices] == [5]


def test_choices_follow_their_nodes_into_their_stages() -> None:
    query = hourly.by("n").aggregate(m=count())
    plan = physical(query, emit="on_close", choices={hourly: Choice("on_update", windows="panes")})
    first, second = stages(plan, partition_columns)
    assert [each.windows for _, each in first.plan.choices] == ["panes"]
    assert not second.plan.choices
    assert {first.plan.emit, second.plan.emit} == {"on_close"}


def test_an_intake_leaves_out_what_its_writer_wrote_twice_and_names_what_is_no_element() -> None:
    source = logical.sources(merged.plan)["merged"]
    bucket = IntakeBucket(Intake(source, "out", 2, 1), 1)
    values: list[bytes | None] = [
        b'{"op":"insert","payload":{"n":1,"origin":"JFK"},"vs":1,"ve":9}',
        b'{"op":"insert","payload":{"n":1,"origin":null},"vs":"soon","ve":9}',
        b'{"op":"stable","vc":5}',
    ]
    seq: list[str | None] = [f"{SEQ_HEADER}={str(number).encode().hex()}" for number in (1, 2, 3)]
    written = Records(1, [4, 5, 6], [b"k", None, None], values, seq)
    first = bucket.take(0, [packed(written)])
    event = Insert(("JFK", 1), 1, 9)
    assert (first.elements[0], first.elements[1:]) == (event, [Stable(5)])
    [letter] = first.letters
    assert (letter.replica, letter.topic, letter.partition, letter.offset) == (
        "merged",
        "out",
        1,
        5,
    )
    again = IntakeBucket(Intake(source, "out", 2, 1), 1)
    again.load([*bucket.pages()], 0, ())
    for each in (bucket, again):
        repeated = each.take(1, [packed(msgspec.structs.replace(written, offsets=[7, 8, 9]))])
        assert (repeated.elements, repeated.dropped, repeated.first) == ([], 3, 3)
    other = msgspec.structs.replace(written, headers=[f"{INCARNATION_HEADER}=31", None, None])
    with pytest.raises(StateError, match=r"^out-1, offset 4: incarnation 1 begins behind 0, "):
        bucket.take(2, [packed(other)])


def test_facts_that_are_refused_become_dead_letters_once() -> None:
    """Of all stages that read a source, and of its buckets, one makes them."""
    reader = SourceReader(flights.plan, 1, ("origin",), (7, 8), "flights.facts")  # type: ignore[arg-type]
    batch = pa.RecordBatch.from_pydict(
        {
            "partition": pa.array([1, 1], pa.int32()),
            "offset": pa.array([3, 4], pa.int64()),
            "key": pa.array([b"k", None], pa.binary()),
            "value": pa.array([b'{"time":"noon"}', b'{"time":5}'], pa.binary()),
        }
    )
    packing = Packing([("flights 0", None, [])])
    chunks = [out.to_pylist() for out in packing.chunks(reader.rows(iter([batch])))]
    given = [row for out in chunks for row in out]
    letters = [row for row in given if is_letters(row["chunk"])]
    assert [row["bucket"] for row in letters] == [7]
    assert sum(row["refused"] for row in given) == 1
    columns = letter_columns([row["chunk"] for row in letters])
    assert (columns["key"], columns["value"]) == ([b"k"], [b'{"time":"noon"}'])
    headers = dict(headers_of(columns["letter"][0]))
    assert headers["lmerge-reason"] == b"wrong_type"
    assert headers["lmerge-topic"] == b"flights.facts"
    assert headers["lmerge-offset"] == b"3"


# Going on with an output of which nothing is left but itself


class _Record(NamedTuple):
    offset: int
    value: bytes
    key: None = None
    timestamp: int = -1

    @property
    def headers(self) -> list[tuple[str, bytes]]:
        return [(SEQ_HEADER, b"%d" % (self.offset + 1))]


def snapshots_of(events: Sequence[tuple[bytes, int, int]]) -> dict[int, list[bytes]]:
    """What is there at each instant, of those at which something changes."""
    times = {time for _, vs, ve in events for time in (vs, ve)}
    return {at: sorted(p for p, vs, ve in events if vs <= at < ve) for at in sorted(times)}


def held_of(query: Query, stream: Sequence[Element]) -> list[bytes]:
    """What Spark would read of one partition of the topic."""
    [whole] = rows_as_records(query, [stream])
    content = OutputContent(TopicPartition("out", 0), OutputReader(query.schema))
    content.take([_Record(at, encode(each)) for at, each in enumerate(whole)])
    return [row["chunk"] for row in held_rows(0, content).to_pylist()]


@seeds(12)
def test_a_query_goes_on_with_what_its_output_holds(seeds: range) -> None:
    """Killed after any record, by any plan, and gone on with by another from the first fact: the
    stream is legal by itself, its numbers have no gap, and it means what the query does."""
    for seed in seeds:
        rng = Random(seed)
        name = rng.choice([*QUERIES])
        query, emits = QUERIES[name], ("on_update", "on_watermark", "on_close")
        topics = random_topics(rng, query, 30)
        plans = [physical(query, emit=rng.choice(emits)) for _ in range(2)]  # type: ignore[arg-type]
        before = Simulation(query_of(plans[0], topics, 2), rng)
        batches = batches_of(topics, rng, 9)
        for batch in batches[: rng.randrange(len(batches) + 1)]:
            before.run(batch)
        after = Simulation(query_of(plans[1], topics, 2), rng)
        kept = [stream[: rng.randrange(len(stream) + 1)] for stream in before.streams]
        after.streams = [[*stream] for stream in kept]
        held = [held_of(query, stream) if stream else [] for stream in kept]
        for at, batch in enumerate(batches_of(topics, rng, 9)):
            after.run(batch, aside=held if at == 0 else ())
            if rng.random() < 0.3:
                after.restart()
        found = events_of(rows_as_records(query, after.streams))
        assert snapshots_of(found) == snapshots_of(meant(query, topics)), (seed, name)


def test_what_is_held_is_the_difference_and_no_more() -> None:
    """A plan that emits on every update emits nothing of what the output has."""
    topics = random_topics(Random(4), hourly, 40)
    before = Simulation(query_of(physical(hourly), topics, 1), Random(1))
    batches = batches_of(topics, Random(1), 9)
    for batch in batches[:4]:
        before.run(batch)
    stream = before.streams[0]
    after = Simulation(query_of(physical(hourly), topics, 1), Random(1))
    after.streams = [[*stream]]
    held = [held_of(hourly, stream)]
    for at, batch in enumerate(batches):
        after.run(batch, aside=held if at == 0 else ())
    for batch in batches[4:]:
        before.run(batch)
    assert after.streams == before.streams


# Feedback


@seeds(10)
def test_what_feedback_allows_is_left_out_and_no_more(seeds: range) -> None:
    """From the point on the TDB is the query's, whatever batches brought it."""
    skipped = 0
    for seed in seeds:
        rng = Random(seed)
        name = rng.choice(["windows", "windows over windows", "of a merge", "two branches"])
        query = QUERIES[name]
        topics = random_topics(rng, query, 40)
        simulation = Simulation(query_of(physical(query), topics, 2), rng)
        point = -40
        for batch in batches_of(topics, rng, 7):
            if rng.random() < 0.5:
                point += rng.randrange(60)
            # one task of the merge is further than the other
            points = packed(Points([(1, 2, point + 90)])), packed(Points([(0, 2, point)]))
            simulation.run(batch, aside=[[*points], [*points]])
            if rng.random() < 0.3:
                simulation.restart()
        found = events_of(rows_as_records(query, simulation.streams))
        whole = meant(query, topics)
        assert [e for e in found if e[2] >= point] == [e for e in whole if e[2] >= point], name
        skipped += len(whole) - len(found)
    assert skipped > 0


def test_a_point_counts_once_all_tasks_have_one() -> None:
    topics = random_topics(Random(4), hourly, 40)
    streams = []
    for points in ([], [(0, 2, 10_000)], [(0, 2, 10_000), (1, 2, 10_000)]):
        simulation = Simulation(query_of(physical(hourly), topics, 1), Random(1))
        for at, batch in enumerate(batches_of(topics, Random(1), 9)):
            simulation.run(batch, aside=[[packed(Points(points))]] if at == 0 else ())
        streams.append([e for e in simulation.streams[0] if not isinstance(e, Stable)])
    assert streams[0] == streams[1]
    assert not streams[2]


def test_feedback_is_read_of_one_replica_and_of_the_output_as_it_is() -> None:
    records = [
        FeedbackRecord("a", task=0, tasks=2, point=7, stable=7, output_id="this"),
        FeedbackRecord("b", task=0, tasks=2, point=8, stable=8, output_id="this"),
        FeedbackRecord("a", task=0, tasks=2, point=5, stable=7, output_id="this"),
        FeedbackRecord("a", task=1, tasks=2, point=9, stable=9, output_id="another"),
    ]
    values = pa.array([*(each.value() for each in records), None, b"["], pa.binary())
    [batch] = FeedbackReader("a", "this", (3, 4)).chunks(
        iter([pa.RecordBatch.from_pydict({"value": values})])
    )
    assert batch["bucket"].to_pylist() == [3, 4]
    assert {unpacked(chunk) == Points([(0, 2, 7)]) for chunk in batch["chunk"].to_pylist()} == {
        True
    }


def test_a_stage_above_one_that_may_revise_what_stands_for_facts_heeds_none() -> None:
    one = departed.windows(tumbling(50)).by("origin", "carrier").aggregate(n=count())
    first, second = stages(physical(one.by("n").aggregate(m=count())), partition_columns)
    assert first.heeds_feedback
    assert second.heeds_feedback
    short = one.at_most(1).by("n").aggregate(m=count())
    assert [each.heeds_feedback for each in stages(physical(short), partition_columns)] == [
        True,
        False,
    ]
