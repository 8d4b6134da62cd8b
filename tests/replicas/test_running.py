"""A replica as a process: what it publishes, and that nothing is lost or repeated by kill -9."""

import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import pytest

from lmerge_service.elements import INFINITY
from lmerge_service.queries.loading import load
from lmerge_service.queries.plan import Query
from lmerge_service.tdb import TDB, differences
from tests.replicas.running import QUERIES, Fact, Running, calls, meant, send_facts, tdb_of

TopicName = Callable[..., str]


def query(name: str) -> Query:
    return load(f"{QUERIES}:{name}")


class Inputs:
    """Topics of facts, for one query, and what it means over them; with a `rate` they are published
    meanwhile, by `publishing`."""

    def __init__(
        self,
        bootstrap: str,
        topic_name: TopicName,
        name: str,
        number: int,
        *,
        partitions: int = 2,
        rate: float | None = None,
    ) -> None:
        self.name = name
        rng = random.Random(f"{name} {number}")
        of = {"joined": ("calls", "sky")}.get(name, ("calls",))
        self.facts: Mapping[str, list[Fact]] = {each: calls(rng, number) for each in of}
        self.topics = {each: topic_name(each) for each in of}
        self._sending: list[threading.Thread] = []
        for each, facts in self.facts.items():
            begin, rest = (facts[:50], facts[50:]) if rate else (facts, [])
            topic = self.topics[each]
            send_facts(bootstrap, topic, begin, partitions=partitions, ended=not rate)
            if rate:
                sending = partial(send_facts, bootstrap, topic, rest, rate=rate)
                self._sending.append(threading.Thread(target=sending))

    @contextmanager
    def publishing(self) -> Iterator[None]:
        """Sends what is left, meanwhile."""
        for each in self._sending:
            each.start()
        try:
            yield
        finally:
            for each in self._sending:
                each.join()

    @property
    def expected(self) -> TDB:
        return meant(query(self.name), self.facts)


def test_it_publishes_what_the_query_means_and_ends_with_the_facts(
    bootstrap: str, topic_name: TopicName
) -> None:
    inputs, to = Inputs(bootstrap, topic_name, "windows", 400), topic_name("windows")
    with Running(bootstrap, "windows", to, "--partitions", "2", **inputs.topics) as replica:
        assert replica.wait() == 0, replica.error
    found = tdb_of(bootstrap, to)
    assert not differences(found, inputs.expected)
    assert found.stable == INFINITY
    with Running(bootstrap, "windows", to, **inputs.topics) as again:
        assert again.wait() == 0, again.error
    assert again.events == ["serving", "ended"]
    assert tdb_of(bootstrap, to) == found


@pytest.mark.full
def test_a_bag_that_is_killed_is_published_once(bootstrap: str, topic_name: TopicName) -> None:
    """Case R4: a repeat would be one event more, and no merge could find out."""
    inputs, to = Inputs(bootstrap, topic_name, "bag", 3_000, rate=1_500), topic_name("bag")

    def running() -> Running:
        options = ("--batch", "40", "--snapshot-seconds", "0.3", "--partitions", "2")
        return Running(bootstrap, "bag", to, *options, **inputs.topics)

    with running() as replica:
        replica.await_line("begins")
        with inputs.publishing():
            time.sleep(1.0)
            replica.kill()
    with running() as replica:
        line = replica.await_line("goes on")
        assert line["incarnation"] == 0
        assert replica.wait() == 0, replica.error
    assert not differences(tdb_of(bootstrap, to), inputs.expected)
