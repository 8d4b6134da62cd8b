"""What goes wrong with facts, modules and state: one clear line, or a dead letter, each."""

import asyncio
import json
import random
from collections.abc import Callable

import httpx
import pytest

from lmerge_service.kafka.connection import Connection
from lmerge_service.kafka.topics import Topics
from lmerge_service.queries.loading import load
from lmerge_service.tdb import differences
from tests.replicas.running import (
    QUERIES,
    Running,
    calls,
    last_commit,
    meant,
    records_in,
    send_facts,
    tdb_of,
)
from tests.waiting import come_true

TopicName = Callable[..., str]
CALLS = calls(random.Random(2), 200)


def test_what_is_no_fact_is_a_dead_letter_and_the_rest_counts(
    bootstrap: str, topic_name: TopicName
) -> None:
    facts, to = topic_name("calls"), topic_name("once")
    wrong = [
        {**CALLS[0], "n": "many"},
        {**CALLS[0], "n": 2**63},
        {**CALLS[0], "time": 2**63 - 1},
        {**CALLS[0], "n": float("nan")},
        {"id": 1, "kind": "call"},
    ]
    sent = [*CALLS[:100], *wrong, *CALLS[:5], {**CALLS[0], "id": -1, "time": 1}, *CALLS[100:]]
    send_facts(bootstrap, facts, sent)
    with Running(bootstrap, "once", to, calls=facts) as replica:
        address = replica.await_line("serving")["address"]
        assert address.startswith("http://127.0.0.1:")
        assert replica.wait() == 0, replica.error
    expected = meant(load(f"{QUERIES}:once"), {"calls": CALLS})
    assert not differences(tdb_of(bootstrap, to), expected)
    (letters,) = records_in(bootstrap, f"{to}.dead-letters")
    found = [dict(letter.headers) for letter in letters]
    assert [
        (each["lmerge-reason"], int(each["lmerge-offset"]), each["lmerge-topic"]) for each in found
    ] == [
        (reason, 100 + at, facts.encode())
        for at, reason in enumerate(
            [b"wrong_type", b"overflow", b"time_overflow", b"nan", b"not_a_fact"]
        )
    ]
    assert json.loads(letters[0].value or b"")["n"] == "many"


@pytest.mark.full
def test_a_module_that_raises_ends_it_before_it_commits(
    bootstrap: str, topic_name: TopicName
) -> None:
    facts, to = topic_name("calls"), topic_name("raising")
    send_facts(bootstrap, facts, [*CALLS, {**CALLS[-1], "n": 13}, *CALLS])
    with Running(bootstrap, "raising", to, calls=facts) as replica:
        assert replica.wait() == 4
    (line,) = replica.error.splitlines()
    assert line.startswith("error: sample_queries:explode(")
    assert line.endswith("raised ValueError('thirteen')")
    commit = last_commit(bootstrap, to)
    assert commit is None or commit.inputs["calls"].partitions[0].next <= 200


@pytest.mark.full
def test_too_much_state_ends_it_before_it_commits(bootstrap: str, topic_name: TopicName) -> None:
    facts, to = topic_name("calls"), topic_name("alive")
    many = [{"id": n, "kind": "call", "at": f"{n}", "n": 1, "time": 1000} for n in range(5_000)]
    send_facts(bootstrap, facts, many, ended=False)
    with Running(bootstrap, "alive", to, "--max-state-bytes", "200000", calls=facts) as replica:
        assert replica.wait() == 4
    (line,) = replica.error.splitlines()
    assert "and may have 200,000 (--max-state-bytes)" in line


@pytest.mark.full
def test_it_is_observed_as_a_worker_is(bootstrap: str, topic_name: TopicName) -> None:
    """A partition that has never spoken holds all back, and is named."""
    facts, to = topic_name("calls"), topic_name("windows")
    one = [fact for fact in CALLS if fact["id"] == CALLS[0]["id"]]
    send_facts(bootstrap, facts, [*one] * 3, partitions=2, ended=False)
    with Running(bootstrap, "windows", to, calls=facts) as replica:
        address = replica.await_line("serving")["address"]
        replica.await_line("begins")

        async def observe() -> dict[str, object]:
            found: dict[str, object] = {}

            def look() -> bool:
                found.update(httpx.get(f"{address}/status").json())
                lags = [p["lag"] for each in found["inputs"] for p in each["partitions"]]  # type: ignore[attr-defined]
                return lags == [0, 0]

            await come_true(look)
            return found

        status = asyncio.run(observe())
        assert httpx.get(f"{address}/readyz").json() == {"state": "running"}
        health = httpx.get(f"{address}/healthz").json()
        (silent,) = [
            p["partition"]
            for each in status["inputs"]  # type: ignore[attr-defined]
            for p in each["partitions"]
            if p["holds_back"]
        ]
        assert health["reasons"] == [
            f"{facts}-{silent} has never spoken, which holds the output back"
        ]
        metrics = httpx.get(f"{address}/metrics").text
        assert (
            f'lmerge_query_partition_holds_back{{input="calls",partition="{silent}"}} 1.0'
            in metrics
        )
        assert 'lmerge_query_records_total{input="calls"} 3.0' in metrics
        assert replica.stop() == 0


@pytest.mark.full
def test_a_mistake_of_the_user_is_one_line(bootstrap: str, topic_name: TopicName) -> None:
    to = topic_name("windows")
    with Running(bootstrap, "windows", to, "--partitions", "2") as missing:
        assert missing.wait() == 2
    assert missing.error.startswith("error: there is no topic calls: start what publishes it")
    facts = topic_name("calls")
    send_facts(bootstrap, facts, CALLS[:1])
    with Running(bootstrap, "everything", to, "--partitions", "2", calls=facts) as whole:
        assert whole.wait() == 2
    assert "nothing divides this query" in whole.error

    async def made() -> bool:
        async with Topics(Connection(bootstrap)) as topics:
            return bool(await topics.partitions([to, f"{to}.state"]))

    assert not asyncio.run(made()), "a mistake leaves nothing behind"
