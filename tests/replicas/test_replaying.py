"""Replicas that answer by replay, on a real broker."""

from collections.abc import Callable

import pytest

from lmerge_service.tdb import differences
from tests.replicas.running import Running, tdb_of
from tests.replicas.test_running import Inputs

pytestmark = pytest.mark.full

TopicName = Callable[..., str]


def test_a_replica_that_keeps_facts_alone_is_killed_and_goes_on_exactly_once(
    bootstrap: str, topic_name: TopicName
) -> None:
    inputs, to = Inputs(bootstrap, topic_name, "windows", 3_000, rate=1_500), topic_name("replay")

    def running(*more: str) -> Running:
        options = ("--batch", "40", "--snapshot-seconds", "0.3", "--partitions", "2", *more)
        return Running(bootstrap, "windows", to, *options, **inputs.topics)

    with running("--replay") as replica:
        replica.await_line(("begins", "goes on"))
        with inputs.publishing():
            pass
        replica.kill()
    with running("--replay", "--plan", "2") as other:  # another plan takes the output over
        assert other.wait() == 0, other.error
    assert not differences(tdb_of(bootstrap, to), inputs.expected)
