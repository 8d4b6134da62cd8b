"""What tests of replay have in common: random inputs, archives of them, and revisions."""

from collections import Counter
from collections.abc import Iterable, Mapping
from random import Random
from typing import Any

from lmerge_service.elements import Adjust, Element, Insert
from lmerge_service.queries import logical
from lmerge_service.queries.logical import Node
from lmerge_service.queries.meaning.plans import meaning
from lmerge_service.queries.replay.archive import Archived, BucketArchive, MemoryStore
from lmerge_service.queries.replay.revising import Revision
from lmerge_service.tdb import TDB
from tests.queries.composed import ROWS
from tests.queries.streams import legal_stream

Events = Counter[tuple[Any, int, int]]


def inputs_of(rng: Random, plan: Node, *, endless: bool = True) -> dict[str, Events]:
    """Events for each source of a plan: points for facts, any for elements."""
    found: dict[str, Events] = {}
    for name, source in logical.sources(plan).items():
        tdb, facts = TDB(), isinstance(source, logical.Source)
        for element in legal_stream(
            rng, payloads=ROWS, length=12, horizon=12, points=facts, endless=endless and not facts
        ):
            tdb.apply(element)
        found[name] = Counter((p, vs, ve) for p, vs, ve in tdb)
    return found


def archived(inputs: Mapping[str, Events], size: int = 3) -> dict[str, BucketArchive]:
    """An archive of each, in order of starts."""
    archives: dict[str, BucketArchive] = {}
    for name, events in inputs.items():
        ordered = sorted(events.elements(), key=lambda event: (event[1], repr(event)))
        archives[name] = BucketArchive(MemoryStore(), size)
        archives[name].append(Archived(at, *event) for at, event in enumerate(ordered))
    return archives


def revision_of(rng: Random, inputs: dict[str, Events]) -> Revision:
    """A random revision of one of the events, or a late insertion; `inputs` become as corrected."""
    name = rng.choice(sorted(inputs))
    events = inputs[name].copy()
    points = all(ve == vs + 1 for _, vs, ve in events)
    old = rng.choice(sorted(events.elements(), key=repr)) if events and rng.random() < 0.7 else None
    new: tuple[Any, int, int] | None = None
    if old is None or rng.random() < 0.7:
        vs = old[1] if old and rng.random() < 0.8 else rng.randrange(12)
        ve = old[2] if old and old[1] == vs else vs + (1 if points else rng.randrange(1, 5))
        new = (rng.choice(ROWS), vs, ve)
    if old is not None:
        events[old] -= 1
    if new is not None:
        events[new] += 1
    inputs[name] = +events
    return Revision(name, Insert(*old) if old else None, Insert(*new) if new else None)


def meant(plan: Node, inputs: Mapping[str, Events]) -> Events:
    """What the plan means of the inputs."""
    given = {name: TDB(events.elements()) for name, events in inputs.items()}
    return Counter((p, vs, ve) for p, vs, ve in meaning(plan, given))


def after(events: Events, elements: Iterable[Element]) -> Events:
    """The events that elements turn events into; each must be where it is taken away."""
    found = events.copy()
    for element in elements:
        if isinstance(element, Insert):
            found[element.payload, element.vs, element.ve] += 1
            continue
        assert isinstance(element, Adjust), element
        assert found[element.payload, element.vs, element.vold] > 0, element
        found[element.payload, element.vs, element.vold] -= 1
        if element.ve > element.vs:
            found[element.payload, element.vs, element.ve] += 1
    return +found
