"""The queries over flights that come along, against what they mean, written anew without plans."""

import itertools
import runpy
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, cast

import msgspec
import pytest

from lmerge_service.elements import INFINITY, Element, Insert, Stable
from lmerge_service.queries.fact_reader import FactReader
from lmerge_service.queries.logical import Source, sources
from lmerge_service.queries.meaning.plans import meaning
from lmerge_service.queries.physical import build
from lmerge_service.queries.plan import Query
from lmerge_service.queries.rows import Refusal, Row
from lmerge_service.tdb import TDB, Event, reconstitute
from lmerge_service.workloads.facts import disordered, facts
from tests.queries import flights_reference as reference

QUERIES = {
    "delays": "delays",
    "in_air": "in-air",
    "top_carriers": "top-carriers",
    "weather": "weather",
}
LEVELS = ("on_update", "on_watermark", "on_close")
HOUR = 3_600_000


def query(name: str) -> Query:
    found = runpy.run_path("topologies/flights.py")[name]
    assert isinstance(found, Query)
    return found


@cache
def some_facts() -> Sequence[Mapping[str, Any]]:
    """Of some days, a few of them an hour late, none of them twice."""
    known = itertools.islice(facts((1,)), 3_000)
    return [msgspec.to_builtins(each) for each in disordered(known, 0.05, HOUR, 1)]


def events(of: Query) -> list[Insert[Any]]:
    (source,) = sources(of.plan).values()
    assert isinstance(source, Source)
    reader, found = FactReader(source), []
    for fact in some_facts():
        event = reader.event(fact)
        assert not isinstance(event, Refusal), event
        found.append(event)
    return found


def published(of: Query, tdb: TDB) -> TDB:
    """The rows as the payloads that a replica publishes."""
    text = cache(of.schema.payload)
    return TDB(Event(text(cast(Row, event.payload)), event.vs, event.ve) for event in tdb)


@pytest.mark.parametrize("name", QUERIES)
def test_a_query_means_what_its_reference_computes(name: str) -> None:
    of, known = query(name), some_facts()
    expected = TDB(reference.MEANING[QUERIES[name]](known))
    found = meaning(
        of.plan,
        {"flights.facts": TDB(Event(*msgspec.structs.astuple(each)) for each in events(of))},
    )
    assert published(of, found) == expected


@pytest.mark.parametrize("emit", LEVELS)
@pytest.mark.parametrize("name", QUERIES)
def test_a_network_computes_it(name: str, emit: Any) -> None:
    of, out = query(name), list[Element]()
    network = build(of, emit=emit)
    given = events(of)
    for at in range(0, len(given), 500):
        out += network.process_batch("flights.facts", given[at : at + 500])
    out += network.process_batch("flights.facts", [Stable(INFINITY)])
    expected = TDB(reference.MEANING[QUERIES[name]](some_facts()))
    assert published(of, reconstitute(out)) == expected
    assert len(network) == 0
