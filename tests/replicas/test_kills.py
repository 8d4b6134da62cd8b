"""kill -9 at any moment, again and again, for each kind of plan: nothing lost, nothing twice.

A replica is a process of its own, but forked and not started anew: what a start imports takes
longer than all that is killed here. `test_running` kills the command itself.
"""

import asyncio
import logging
import multiprocessing
import os
import random
import signal
from collections.abc import Callable, Sequence
from functools import partial

import pytest
import structlog

from lmerge_service.errors import LMergeError
from lmerge_service.kafka.connection import Connection
from lmerge_service.queries.loading import load
from lmerge_service.queries.physical import PhysicalPlan
from lmerge_service.queries.plan import Query
from lmerge_service.queries.plan_numbering import numbered_plans
from lmerge_service.queries.properties import partition_columns
from lmerge_service.replicas.request import ReplicaRequest
from lmerge_service.replicas.serving import run_replica
from lmerge_service.tdb import differences
from tests.replicas.running import QUERIES, Fact, calls, meant, send_facts, tdb_of

TopicName = Callable[..., str]
FORK = multiprocessing.get_context("fork")


def ends_killed(requests: Sequence[ReplicaRequest], rng: random.Random, kills: int) -> int:
    """Runs it again and again, by any of these, and kills it while it does what it does, so often;
    how often it was killed before it had ended. Then lets it end."""
    done = 0
    for number in range(kills + 1):
        process = FORK.Process(target=partial(_run, rng.choice(requests)))
        process.start()
        if number < kills:
            process.join(rng.choice([0.05, 0.3, 1.0, 2.0]) * rng.random())
            if process.is_alive():
                assert process.pid is not None
                os.kill(process.pid, signal.SIGKILL)
                process.join()
                done += 1
                continue
        else:
            process.join(120)
        assert process.exitcode == 0
        return done
    raise AssertionError("it was not let end")


def _run(request: ReplicaRequest) -> None:
    """In the process: its exit code is that of the command."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    code = 1
    try:
        asyncio.run(run_replica(request))
        code = 0
    except LMergeError as error:
        print(error)
        code = error.exit_code
    finally:
        os._exit(code)


def request_of(
    bootstrap: str, query: Query, plan: PhysicalPlan, to: str, topics: dict[str, str], every: float
) -> ReplicaRequest:
    return ReplicaRequest(
        name=to,
        query=query.plan,
        plan=plan,
        columns=partition_columns(query.plan),
        number="",
        connection=Connection(bootstrap),
        to=to,
        topics=topics,
        partitions=2,
        batch=30,
        snapshot_seconds=every,
    )


def kill_loop(
    bootstrap: str,
    topic_name: TopicName,
    name: str,
    numbers: Sequence[int],
    rng: random.Random,
    kills: int,
) -> None:
    """Half of the facts are there when it starts; the rest come while it is killed. Each start has
    one of the plans of these numbers."""
    query = load(f"{QUERIES}:{name}")
    plans = numbered_plans(query)
    sources = ("calls", "sky") if name == "joined" else ("calls",)
    facts: dict[str, list[Fact]] = {each: calls(rng, 4_000) for each in sources}
    topics = {each: topic_name(each) for each in sources}
    for each, of in facts.items():
        send_facts(bootstrap, topics[each], of[:2_000], partitions=2, ended=False)
    senders = [
        FORK.Process(target=partial(send_facts, bootstrap, topics[each], of[2_000:], rate=400))
        for each, of in facts.items()
    ]
    for sender in senders:
        sender.start()
    to, every = topic_name(name), rng.choice([0.2, 2.0])
    requests = [
        request_of(bootstrap, query, plans[min(number, len(plans)) - 1], to, topics, every)
        for number in numbers
    ]
    killed = ends_killed(requests, rng, kills)
    for sender in senders:
        sender.join()
    assert killed > 0
    found = tdb_of(bootstrap, to)
    assert not differences(found, meant(query, facts))


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "plan"),
    [
        *(("windows", 1), ("windows", 3), ("bag", 1), ("bag", 2), ("alive", 1), ("alive", 2)),
        *(("joined", 1), ("joined", 2), ("once", 1)),
    ],
)
def test_a_replica_that_is_killed_at_any_moment_loses_and_repeats_nothing(
    name: str, plan: int, bootstrap: str, topic_name: TopicName
) -> None:
    kill_loop(bootstrap, topic_name, name, [plan], random.Random(f"{name} {plan}"), 8)


@pytest.mark.full
@pytest.mark.parametrize("name", ["windows", "alive"])
def test_plans_that_are_killed_as_they_take_the_output_over_lose_and_repeat_nothing(
    name: str, bootstrap: str, topic_name: TopicName
) -> None:
    """Any of four plans goes on with the output at each start, so that most starts switch."""
    kill_loop(bootstrap, topic_name, name, [1, 2, 3, 4], random.Random(f"{name} in turns"), 12)


@pytest.mark.deep
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("name", ["windows", "bag", "alive", "joined", "once"])
def test_the_same_for_all_plans_and_longer(
    name: str, seed: int, bootstrap: str, topic_name: TopicName
) -> None:
    kill_loop(bootstrap, topic_name, name, [1 + seed], random.Random(f"{name} {seed}"), 25)
