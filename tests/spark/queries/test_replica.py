"""Replicas as they run: Spark, Kafka, processes that are killed, checkpoints that are lost."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lmerge_service.elements import INFINITY, START, Element
from lmerge_service.errors import ConfigurationError
from lmerge_service.formats.feedback import FeedbackRecord, feedback_topic
from lmerge_service.formats.routing import Router
from lmerge_service.formats.wire import WireDecoder
from lmerge_service.kafka.connection import Connection
from lmerge_service.kafka.feed import feed
from lmerge_service.spark.queries.catalogue import QUERIES
from lmerge_service.spark.queries.identity import QueryReplica
from lmerge_service.spark.queries.plans import Batch
from lmerge_service.spark.queries.running import follow, start
from lmerge_service.tdb import TDB, differences, reconstitute
from lmerge_service.workloads.facts import Fact
from tests.spark.queries.reference import HOUR, MINUTE, meaning
from tests.spark.queries.simulate import random_facts
from tests.spark.queries.topics import facts_in, merge_of, publish_facts
from tests.spark.records import Sent, make_topic, received, send

LATENESS = 30 * MINUTE
LATER = 240 * HOUR
WIDTH = 2
Names = Callable[..., str]


def streams_of(bootstrap: str, topic: str) -> list[list[Element]]:
    decoder = WireDecoder()
    found: dict[int, list[Element]] = {}
    for record in received(bootstrap, topic):
        found.setdefault(record.partition, []).append(decoder.decode(record.value))
    return [found[number] for number in sorted(found)]


def part_of(expected: TDB, key: tuple[str, ...], number: int) -> TDB:
    router = Router(WIDTH, key)
    return TDB(each for each in expected if router.partition_of(each.payload) == number)  # type: ignore[arg-type]


def both_plans(
    spark: SparkSession, name: str, facts: str, places: dict[str, str], folder: Path, **more: Any
) -> dict[str, list[Batch]]:
    """Runs them at once until the facts end; what each batch came to, by plan."""
    running, seen = {}, dict[str, list[Batch]]()
    for plan, to in places.items():
        replica = QueryReplica(
            query=QUERIES[name], plan=plan, facts=facts, to=to, checkpoint=folder / plan,
            lateness=LATENESS, partitions=WIDTH, batch=60, **more,
        )  # fmt: skip
        identity, running[plan] = start(spark, replica)
        assert (identity.incarnation, identity.joining_at) == (0, START)
    for plan, query in running.items():
        seen[plan] = []
        assert follow(query, seen[plan].append), "it ends"
    return seen


def check_plans(
    spark: SparkSession, bootstrap: str, topic_name: Names, folder: Path, name: str
) -> None:
    topic = random_facts(Random(name), 60, 2)
    expected = meaning(name, topic, LATENESS)
    facts = topic_name("facts")
    publish_facts(bootstrap, facts, topic)
    places = {plan: topic_name(plan) for plan in QUERIES[name].plans}
    seen = both_plans(spark, name, facts, places, folder, kafka=bootstrap)
    late = set()
    for plan, batches in seen.items():
        assert sum(each.facts for each in batches) == sum(map(len, topic))
        assert len(batches) > 2, "several batches"
        assert batches[-1].ended
        late.add(sum(each.late for each in batches))
        streams = streams_of(bootstrap, places[plan])
        assert sum(map(len, streams)) == sum(each.records for each in batches)
        for number, stream in enumerate(streams):
            tdb = reconstitute(stream)
            assert tdb.stable == INFINITY
            assert not differences(tdb, part_of(expected, QUERIES[name].key, number))
    assert len(late) == 1
    assert late != {0}
    merged = reconstitute(merge_of(bootstrap, [*places.values()]))
    assert not differences(merged, expected)


@pytest.mark.full
def test_two_plans_on_spark_emit_what_the_reference_emits(
    spark: SparkSession, bootstrap: str, topic_name: Names, tmp_path: Path
) -> None:
    check_plans(spark, bootstrap, topic_name, tmp_path, "delays")


@pytest.mark.deep
@pytest.mark.parametrize("name", ["in-air", "top-carriers", "weather"])
def test_the_other_queries_too(
    name: str, spark: SparkSession, bootstrap: str, topic_name: Names, tmp_path: Path
) -> None:
    check_plans(spark, bootstrap, topic_name, tmp_path, name)


@pytest.mark.full
def test_feedback_is_heeded_and_what_has_ended_is_not_begun_again(
    spark: SparkSession, bootstrap: str, topic_name: Names, tmp_path: Path
) -> None:
    topic = random_facts(Random(4), 60, 1)
    expected = meaning("delays", topic, LATENESS)
    facts, output, to = topic_name("facts"), topic_name("merged"), topic_name("a")
    publish_facts(bootstrap, facts, topic)
    replica = QueryReplica(
        query=QUERIES["delays"], plan="speculative", kafka=bootstrap, facts=facts, to=to,
        checkpoint=tmp_path / "a", lateness=LATENESS, feedback=output, name="a",
    )  # fmt: skip
    with pytest.raises(ConfigurationError, match=r"merged-.*\.feedback: a merge makes it"):
        start(spark, replica)
    until = 150 * MINUTE
    make_topic(bootstrap, feedback_topic(output))
    point = FeedbackRecord("a", 0, 1, until, until)
    send(bootstrap, feedback_topic(output), [Sent(point.value(), point.key())])
    _, query = start(spark, replica)
    batches: list[Batch] = []
    assert follow(query, batches.append)
    assert batches[-1].point == until
    assert sum(each.skipped for each in batches) > 0
    [stream] = streams_of(bootstrap, to)
    assert set(reconstitute(stream)) == {each for each in expected if each.ve >= until}
    _, query = start(spark, replica)
    assert query is None, "it has ended"
    assert follow(query), "so there is nothing to wait for"
    again = QueryReplica(
        query=QUERIES["delays"], plan="conservative", kafka=bootstrap, facts=facts, to=to,
        checkpoint=tmp_path / "a", lateness=LATENESS, feedback=output, name="a",
    )  # fmt: skip
    with pytest.raises(ConfigurationError, match="is of a replica with plan speculative, not con"):
        start(spark, again)


# Processes


class Process:
    """`lmerge replica run … --json`, whose lines are read one by one."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "lmerge_service.cli", "replica", "run", *arguments, "--json"],
            stdout=subprocess.PIPE, text=True, env=os.environ,
        )  # fmt: skip

    def next_document(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"ended with {self.process.wait()}"
        printed: dict[str, Any] = json.loads(line)
        return printed

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def rest(self) -> list[dict[str, Any]]:
        """To its good end."""
        assert self.process.stdout is not None
        printed = [json.loads(line) for line in self.process.stdout]
        assert self.process.wait(60) == 0
        return printed


@contextmanager
def running(*arguments: str) -> Iterator[Process]:
    process = Process(*arguments)
    try:
        yield process
    finally:
        process.kill()


def fed(bootstrap: str, topic: str, rng: Random) -> list[list[dict[str, Any]]]:
    """Facts at times that Kafka has, published as `lmerge replica feed` does; by partition."""
    [made] = random_facts(rng, 300, 1, ended=False)
    moved = [
        Fact(
            **{k: v + LATER if k in ("time", "departs", "arrives") else v for k, v in each.items()}
        )
        for each in made
        if each["time"] is not None
    ]
    asyncio.run(feed(Connection(bootstrap), topic, moved, partitions=2))
    return facts_in(bootstrap, topic, 2)


@pytest.mark.deep
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("spark")  # one of them at a time
@pytest.mark.parametrize("name", QUERIES)
def test_replicas_that_are_killed_go_on_and_mean_the_same(
    name: str, bootstrap: str, topic_name: Names, tmp_path: Path
) -> None:
    """One plan is killed twice and goes on; the other loses its checkpoint and begins anew, first
    from the middle, then from the beginning. The merge of both is the reference."""
    facts, firm, early = topic_name("facts"), topic_name("firm"), topic_name("early")
    expected = meaning(name, fed(bootstrap, facts, Random(name)), LATENESS)
    usual = (
        *("--facts", facts, "--partitions", "2", "--bootstrap", bootstrap, "--batch", "200"),
        *("--master", "local[2]", "--lateness", str(LATENESS // 1000)),
    )

    def plan(which: str, to: str, folder: str, *more: str) -> tuple[str, ...]:
        place = ("--to", to, "--checkpoint", str(tmp_path / folder))
        return (name, "--plan", which, *usual, *place, *more)

    committed = []
    for kills in range(2):
        with running(*plan("speculative", early, "early")) as process:
            assert process.next_document()["replica"]["incarnation"] == 0
            committed.append(process.next_document()["batch"]["number"])
            if kills:
                process.next_document()
            process.kill()
    assert committed[1] > committed[0], "it goes on, and does not begin again"
    with running(*plan("speculative", early, "early")) as process:
        printed = process.rest()
    assert printed[-1] == {"ended": True}
    assert not differences(reconstitute(merge_of(bootstrap, [early])), expected)

    with running(*plan("conservative", firm, "firm")) as process:
        process.next_document()
        process.next_document()
        process.kill()
    since = LATER + 100 * MINUTE
    with running(*plan("conservative", firm, "anew", "--since", str(since))) as process:
        printed = process.rest()
    identity = printed[0]["replica"]
    assert identity["incarnation"] == 1
    assert identity["joining_at"] == since + QUERIES[name].shape.memory
    joined = [record for record in received(bootstrap, firm) if record.headers]
    assert {dict(record.headers)["lmerge-incarnation"] for record in joined} == {b"1"}
    assert {dict(r.headers)["lmerge-joining-at"] for r in joined} == {
        str(identity["joining_at"]).encode()
    }
    held = {
        each
        for stream in (_decoded(joined, number) for number in range(2))
        for each in reconstitute(stream)
    }
    assert held == {each for each in expected if each.ve >= identity["joining_at"]}
    assert not differences(reconstitute(merge_of(bootstrap, [early, firm])), expected)

    with running(*plan("conservative", firm, "again")) as process:
        printed = process.rest()
    assert printed[0]["replica"]["incarnation"] == 2
    assert not differences(reconstitute(merge_of(bootstrap, [firm])), expected)


@pytest.mark.deep
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("spark")
def test_a_replica_that_has_lost_its_checkpoint_resumes_by_what_its_topic_holds(
    bootstrap: str, topic_name: Names, tmp_path: Path
) -> None:
    """Killed, resumed without its checkpoint, killed again, and gone on with the new one: one
    incarnation, in which nothing is lost though batches were written in part and twice."""
    facts, to = topic_name("facts"), topic_name("early")
    expected = meaning("in-air", fed(bootstrap, facts, Random(9)), LATENESS)
    usual = (
        *("in-air", "--plan", "speculative", "--facts", facts, "--to", to, "--partitions", "2"),
        *("--bootstrap", bootstrap, "--batch", "100", "--master", "local[2]"),
        *("--lateness", str(LATENESS // 1000), "--resume"),
    )
    begun = []
    for folder, batches in (("first", 4), ("second", 3), ("second", 1)):
        with running(*usual, "--checkpoint", str(tmp_path / folder)) as process:
            begun.append(process.next_document()["replica"])
            for _ in range(batches):
                process.next_document()
            process.kill()
    with running(*usual, "--checkpoint", str(tmp_path / "second")) as process:
        assert process.rest()[-1] == {"ended": True}
    assert [each["resumed"] for each in begun] == [False, True, True]
    assert begun[1]["since"] == begun[2]["since"] > LATER
    assert {each["incarnation"] for each in begun} == {0}
    assert not any(record.headers for record in received(bootstrap, to))
    assert not differences(reconstitute(merge_of(bootstrap, [to])), expected)
    with running(*usual, "--checkpoint", str(tmp_path / "third")) as process:
        assert process.rest()[-1] == {"ended": True}, "there is nothing more to emit"


def _decoded(records: list[Any], partition: int) -> list[Element]:
    decoder = WireDecoder()
    return [decoder.decode(each.value) for each in records if each.partition == partition]
