"""A statement as a replica, on a real broker."""

import time
from collections.abc import Callable

import pytest

from lmerge_service.queries.loading import queries_in
from lmerge_service.queries.sql.statements import query_over
from lmerge_service.tdb import differences
from tests.replicas.running import QUERIES, Running, tdb_of
from tests.replicas.test_running import Inputs, query

pytestmark = pytest.mark.full

TopicName = Callable[..., str]

STATEMENT = """
    SELECT at, COUNT(*) AS calls, SUM(n) AS n, MAX(n) AS most
    FROM HOP(calls, time, INTERVAL '20' MILLISECOND, INTERVAL '60' MILLISECOND)
    WHERE kind = 'call'
    GROUP BY window_start, at
"""


def test_a_statement_that_is_killed_goes_on_as_the_fluent_query(
    bootstrap: str, topic_name: TopicName
) -> None:
    """They are one query: the second process takes the first one's state and output over."""
    assert query_over(STATEMENT, queries_in(str(QUERIES))) == query("windows")
    inputs, to = Inputs(bootstrap, topic_name, "windows", 3_000, rate=1_500), topic_name("sql")
    options = ("--batch", "40", "--snapshot-seconds", "0.3", "--partitions", "2")
    stated = Running(bootstrap, "", to, *options, "--sql", STATEMENT, **inputs.topics)
    stated.command[stated.command.index(f"{QUERIES}:")] = str(QUERIES)
    with stated:
        stated.await_line("begins")
        with inputs.publishing():
            time.sleep(1.0)
            stated.kill()
    with Running(bootstrap, "windows", to, *options, **inputs.topics) as fluent:
        assert fluent.await_line("goes on")["incarnation"] == 0
        assert fluent.wait() == 0, fluent.error
    assert not differences(tdb_of(bootstrap, to), inputs.expected)
