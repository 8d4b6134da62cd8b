"""Plans on Spark as replicas: Kafka, processes that are killed, several executors."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lmerge_service.elements import START, Element
from lmerge_service.errors import ConfigurationError, StateError
from lmerge_service.formats.feedback import FeedbackRecord, feedback_topic
from lmerge_service.formats.headers import SEQ_HEADER, seq_of
from lmerge_service.formats.wire import WireDecoder
from lmerge_service.queries.physical import physical
from lmerge_service.queries.plan import Query
from lmerge_service.queries.properties import partition_columns
from lmerge_service.replicas.running import dead_letter_topic
from lmerge_service.spark.queries.identity import PlanIdentity, PlanReplica
from lmerge_service.spark.queries.running import PlanBatch, follow_plan, start_plan
from tests.spark.queries.stage_runs import (
    QUERIES,
    Topics,
    departed,
    events_of,
    hourly,
    meant,
    random_topics,
    refused,
)
from tests.spark.queries.topics import merge_of
from tests.spark.records import Sent, make_topic, received, send

Names = Callable[..., str]


def publish(bootstrap: str, topic_name: Names, topics: Topics) -> dict[str, str]:
    """By source the topic that has its facts."""
    found = {}
    for name, partitions in topics.items():
        found[name] = topic_name(name)
        make_topic(bootstrap, found[name], len(partitions))
        sent = [Sent(v, None, n) for n, values in enumerate(partitions) for v in values]
        send(bootstrap, found[name], sent, linger_ms=5)
    return found


def streams_of(bootstrap: str, topic: str) -> list[list[Element]]:
    """Of each partition the elements that a reader has once it skips what is there twice."""
    decoder = WireDecoder()
    found: dict[int, list[Element]] = {}
    for record in received(bootstrap, topic):
        stream = found.setdefault(record.partition, [])
        number = seq_of(record.headers)
        assert number is not None
        assert number <= len(stream) + 1, "a number is left out"
        element = decoder.decode(record.value)
        if number <= len(stream):
            assert stream[number - 1] == element, "a number is of two records"
        else:
            stream.append(element)
    return [found[number] for number in sorted(found)]


@pytest.mark.full
@pytest.mark.timeout(600)
def test_stages_and_the_native_plan_are_replicas_of_one_query(
    spark: SparkSession, bootstrap: str, topic_name: Names, tmp_path: Path
) -> None:
    """Stopped and gone on with; merged; refused for another plan, and over once the facts are."""
    topics = random_topics(Random(11), hourly, 80)
    places = publish(bootstrap, topic_name, topics)
    expected = meant(hourly, topics)
    replicas = {
        native: PlanReplica(
            name="hourly",
            query=hourly.plan,
            plan=physical(hourly),
            columns_of=partition_columns,
            kafka=bootstrap,
            to=topic_name("native" if native else "network"),
            checkpoint=tmp_path / str(native),
            topics=places,
            partitions=2,
            batch=50,
            native=native,
        )
        for native in (False, True)
    }
    for asked in replicas.values():
        identity, query = start_plan(spark, asked)
        assert identity.widths == {"flights": 2}
        batches: list[PlanBatch] = []
        assert not follow_plan(query, batches.append, lambda seen=batches: len(seen) > 0)  # type: ignore[misc]
        _, query = start_plan(spark, asked)
        assert follow_plan(query, batches.append)
        assert batches[-1].ended
        # a batch that ended while the query was stopped is reported to nobody
        assert 0 < sum(each.facts for each in batches) <= sum(map(len, topics["flights"]))
        streams = streams_of(bootstrap, asked.to)
        assert 0 < sum(each.records for each in batches) <= sum(map(len, streams))
        assert events_of(streams) == expected
        assert start_plan(spark, asked)[1] is None, "it has ended"
        dead = [each.value for each in received(bootstrap, dead_letter_topic(asked.to))]
        assert {*dead} == {*refused(hourly, topics)}
        if not asked.native:
            other = replace(asked, plan=physical(hourly, emit="on_close"))
            with pytest.raises(ConfigurationError, match=r"a replica with plan \w+-\w+, not \w"):
                start_plan(spark, other)
        else:
            shutil.copytree(asked.checkpoint, tmp_path / "copy")
            (tmp_path / "copy" / "plan.json").unlink()
            with pytest.raises(ConfigurationError, match=r"^--native: its windows were in Spark's"):
                start_plan(spark, replace(asked, checkpoint=tmp_path / "copy", resume=True))
            with pytest.raises(ConfigurationError, match="computes all windows: leave out --feed"):
                start_plan(spark, replace(asked, feedback="merged"))
        with pytest.raises(ConfigurationError, match="with engine"):
            start_plan(spark, replace(asked, native=not asked.native))
        with pytest.raises(ConfigurationError, match="is of another query than other, or of what"):
            start_plan(spark, replace(asked, name="other", query=departed.plan, native=False))
    merged = merge_of(bootstrap, [each.to for each in replicas.values()])
    assert events_of([merged]) == expected
    lost = replace(replicas[False], topics={"flights": topic_name("nowhere")}, checkpoint=tmp_path)
    with pytest.raises(ConfigurationError, match=r"there is no topic nowhere.*, which is to be fl"):
        start_plan(spark, lost)
    (tmp_path / "False" / "plan.json").unlink()
    with pytest.raises(StateError, match=r"has no plan\.json: --resume goes on from what .* has, "):
        start_plan(spark, replicas[False])


def run_to_the_end(spark: SparkSession, asked: PlanReplica) -> PlanIdentity:
    identity, query = start_plan(spark, asked)
    assert follow_plan(query)
    return identity


@pytest.mark.full
@pytest.mark.timeout(600)
def test_a_job_whose_checkpoint_is_lost_goes_on_with_what_its_topic_holds(
    spark: SparkSession, bootstrap: str, topic_name: Names, tmp_path: Path
) -> None:
    """Of a bag, by another plan, in the same incarnation; and begins anew where it is asked to."""
    query = departed.window(30)
    topics = random_topics(Random(8), query, 120)
    whole = {name: [[*values] for values in partitions] for name, partitions in topics.items()}
    for values in topics["flights"]:
        del values[len(values) // 2 :]
    places = publish(bootstrap, topic_name, topics)
    asked = PlanReplica(
        name="departed",
        query=query.plan,
        plan=physical(query),
        columns_of=partition_columns,
        kafka=bootstrap,
        to=topic_name("resumed"),
        checkpoint=tmp_path / "checkpoint",
        topics=places,
        partitions=2,
    )
    first, running = start_plan(spark, asked)
    seen: list[PlanBatch] = []
    follow_plan(running, seen.append, lambda: bool(seen))
    assert seen[0].records > 0
    shutil.rmtree(asked.checkpoint)
    rest = [
        Sent(value, None, n)
        for n, values in enumerate(whole["flights"])
        for value in values[len(topics["flights"][n]) :]
    ]
    send(bootstrap, places["flights"], rest, linger_ms=5)
    resumed = replace(asked, plan=physical(query, emit="on_close"), resume=True)
    again = run_to_the_end(spark, resumed)
    assert (again.incarnation, again.resumed) == (first.incarnation, True)
    assert events_of(streams_of(bootstrap, asked.to)) == meant(query, whole)
    # and once more, from nothing: there is nothing left to emit
    before = len(received(bootstrap, asked.to))
    shutil.rmtree(asked.checkpoint)
    assert start_plan(spark, resumed)[1] is None, "it has ended"
    assert len(received(bootstrap, asked.to)) == before
    # the next incarnations: with all facts, with those of a time, with those of now
    anew = run_to_the_end(spark, replace(asked, checkpoint=tmp_path / "anew"))
    assert (anew.incarnation, anew.joining_at) == (1, START)
    assert events_of([merge_of(bootstrap, [asked.to])]) == meant(query, whole)
    since = run_to_the_end(spark, replace(asked, checkpoint=tmp_path / "anew", since=1))
    assert (since.incarnation, since.since, since.run) == (2, 1, 2)
    assert since.joining_at > 1
    assert [each.name for each in (tmp_path / "anew").glob("spark-*")] == ["spark-2"]
    same = replace(asked, checkpoint=tmp_path / "anew", since=1)
    assert start_plan(spark, same)[0] == since, "the one that goes on"
    now = run_to_the_end(spark, replace(asked, checkpoint=tmp_path / "anew", rejoin=True))
    assert (now.incarnation, now.run) == (3, 3)


@pytest.mark.full
@pytest.mark.timeout(600)
def test_a_query_over_a_merge_heeds_the_feedback_of_another(
    spark: SparkSession, bootstrap: str, topic_name: Names, tmp_path: Path
) -> None:
    """Elements that were written twice; a point that is there from the beginning."""
    query = QUERIES["of a merge"]
    topics = random_topics(Random(5), query, 60)
    places = {"merged": topic_name("merged")}
    make_topic(bootstrap, places["merged"], 2)
    numbered = [
        Sent(value, None, n, ((SEQ_HEADER, b"%d" % at),))
        for n, values in enumerate(topics["merged"])
        for at, value in enumerate(values, 1)
    ]
    send(bootstrap, places["merged"], [*numbered[:50], *numbered], linger_ms=5)
    point = sorted(ve for _, _, ve in meant(query, topics))[-4]
    upper = topic_name("upper")
    make_topic(bootstrap, upper, 1)
    make_topic(bootstrap, feedback_topic(upper), 1)
    given = FeedbackRecord("c", task=0, tasks=1, point=point, stable=point)
    send(bootstrap, feedback_topic(upper), [Sent(given.value(), given.key(), 0)])
    asked = PlanReplica(
        name="over",
        query=query.plan,
        plan=physical(query),
        columns_of=partition_columns,
        kafka=bootstrap,
        to=topic_name("over"),
        checkpoint=tmp_path / "checkpoint",
        topics=places,
        partitions=2,
        feedback=upper,
        replica="c",
    )
    run_to_the_end(spark, asked)
    found, whole = events_of(streams_of(bootstrap, asked.to)), meant(query, topics)
    assert [each for each in found if each[2] >= point] == [e for e in whole if e[2] >= point]
    with pytest.raises(ConfigurationError, match=r"there is no topic nowhere: a merge makes it"):
        start_plan(spark, replace(asked, feedback="nowhere"))


# Processes

FILE = """
from tests.spark.queries.stage_runs import QUERIES, departed, hourly
over = QUERIES["windows over windows"]
merged, bookings = QUERIES["facts and elements"], QUERIES["no duplicates"]
"""


class Process:
    """`lmerge query spark … --json`, whose lines are read one by one."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "lmerge_service.cli", "query", "spark", *arguments, "--json"],
            stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": str(Path.cwd())},
        )  # fmt: skip

    def next_document(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"ended with {self.process.wait()}"
        printed: dict[str, Any] = json.loads(line)
        return printed

    def rest(self) -> list[dict[str, Any]]:
        """To its good end."""
        assert self.process.stdout is not None
        printed = [json.loads(line) for line in self.process.stdout]
        assert self.process.wait(60) == 0
        return printed

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextmanager
def running(*arguments: str) -> Iterator[Process]:
    process = Process(*arguments)
    try:
        yield process
    finally:
        process.kill()


@pytest.mark.deep
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("spark")  # one of them at a time
@pytest.mark.parametrize("name", ["departed", "over", "hourly", "merged", "bookings"])
def test_replicas_that_are_killed_go_on_and_no_record_counts_twice(
    name: str, bootstrap: str, topic_name: Names, tmp_path: Path
) -> None:
    """`departed` is a bag, whose repeats no merge could distinguish from events. Before the last
    start the checkpoint is lost, unless Spark computes the query."""
    queries = {
        "departed": departed,
        "over": QUERIES["windows over windows"],
        "hourly": hourly,
        "merged": QUERIES["facts and elements"],
        "bookings": QUERIES["no duplicates"],
    }
    query: Query = queries[name]
    topics = random_topics(Random(name), query, 400)
    places = publish(bootstrap, topic_name, topics)
    file, to = tmp_path / "asked.py", topic_name("killed")
    file.write_text(FILE)
    arguments = (
        *(f"{file}:{name}", "--to", to),
        *(each for source, topic in places.items() for each in ("--topic", f"{source}={topic}")),
        *("--partitions", "2", "--batch", "60", "--bootstrap", bootstrap),
        *("--checkpoint", str(tmp_path / "checkpoint"), "--master", "local[2]"),
        *(["--native"] if name == "hourly" else []),
    )
    for batches in (1, 2):
        with running(*arguments) as process:
            assert "replica" in process.next_document()
            for _ in range(batches):
                process.next_document()
            process.kill()
    if name != "hourly":
        shutil.rmtree(tmp_path / "checkpoint")
        arguments = (*arguments, "--resume")
    with running(*arguments) as process:
        assert process.rest()[-1] == {"ended": True}
    assert events_of(streams_of(bootstrap, to)) == meant(query, topics)


ON_TWO = """
import sys
from pathlib import Path
from lmerge_service.queries.physical import physical
from lmerge_service.spark.session import spark_session
from tests.spark.queries.stage_runs import QUERIES
from tests.spark.queries.test_pipeline import check

with spark_session(
    master="local-cluster[2,1,1024]", driver_memory="1g", kafka=False,
    settings={"spark.executorEnv.PYTHONPATH": str(Path.cwd()), "spark.executor.memory": "1024m"},
) as spark:
    query = QUERIES["windows over windows"]
    check(spark, Path(sys.argv[1]), query, physical(query), most=99)
    tracker = spark.sparkContext._jsc.sc().statusStore().executorList(False)
    ran = [tracker.apply(n).totalTasks() for n in range(tracker.size())
           if tracker.apply(n).id() != "driver"]
    print("ran", *ran)
"""


@pytest.mark.deep
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("spark")
def test_two_executors_share_the_work(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ON_TWO, str(tmp_path)],
        capture_output=True, text=True, timeout=800, check=False,
        env=os.environ | {"PYTHONPATH": str(Path.cwd())},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    [line] = [line for line in done.stdout.splitlines() if line.startswith("ran ")]
    tasks = [int(each) for each in line.split()[1:]]
    assert len(tasks) == 2
    assert min(tasks) > 3
