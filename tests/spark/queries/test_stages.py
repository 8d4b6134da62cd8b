"""Stages against what queries mean, whatever batches, tasks, late facts, restarts; no Spark."""

from random import Random
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
import pytest
from pyspark.sql.streaming.tws_tester import TwsTester

from lmerge_service.elements import Element
from lmerge_service.errors import ConfigurationError, StateError
from lmerge_service.formats.wire import WireDecoder
from lmerge_service.queries import logical
from lmerge_service.queries.expressions import col, udf
from lmerge_service.queries.physical import Choice, physical
from lmerge_service.queries.plan import count, elements, facts, tumbling
from lmerge_service.queries.properties import partition_columns
from lmerge_service.spark.queries.stage_bucket import StageBucket, StageSettings
from lmerge_service.spark.queries.stage_processor import StageProcessor, StageTask, Target
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


def test_what_spark_cannot_divide_is_refused_in_one_line() -> None:
    merged = elements("merged", {"n": int}).by("n").aggregate(k=count())
    with pytest.raises(
        ConfigurationError, match=r"^merged is a topic of elements: .* without --sp"
    ):
        stages(physical(merged), partition_columns)
    keyed = facts("keyed", time="time", fields={"id": int}, key="id")
    with pytest.raises(ConfigurationError, match=r"^keyed drops duplicates by id: "):
        stages(physical(keyed.windows(tumbling(9)).aggregate(n=count())), partition_columns)
