"""GenMig hands over from one plan to another; what it emits is what both mean."""

from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from benchmarks.genmig import Fork, Fuse, GenMig, doubled
from lmerge_service.elements import INFINITY, Adjust, Element, Insert, Stable
from lmerge_service.queries import logical
from lmerge_service.queries.meaning import plans as meaning
from lmerge_service.queries.network import Network
from lmerge_service.queries.physical import Emit, build
from lmerge_service.queries.plan import Query, elements
from lmerge_service.tdb import TDB, reconstitute
from tests.queries.promises import snapshot_at
from tests.queries.streams import interleaved, legal_stream
from tests.queries.switching import EQUIVALENT, ROWS
from tests.queries.vectors import vectors

_REDUCIBLE = [name for name in EQUIVALENT if name != "windows"]
_LEVELS: tuple[Emit, ...] = ("on_update", "on_watermark", "on_close")
_HORIZON = 40

A, B = elements("A", {"k": str}), elements("B", {"k": str})
BELOW, ABOVE = A.join(B, "k").distinct(), A.distinct().join(B.distinct(), "k")


def _rows(rows: list[list[Any]]) -> list[Element]:
    return [Insert((payload,), vs, ve) for payload, vs, ve in rows]


def _covered(rows: list[list[Any]]) -> Counter[tuple[Any, float]]:
    """How often each payload is there at each half of a unit."""
    return Counter(
        (payload, half / 2)
        for payload, vs, ve in rows
        for half in range(round(2 * vs), round(2 * ve))
    )


def _seen(stream: list[Element], scale: int) -> list[list[Any]]:
    return [[*e.payload, e.vs / scale, e.ve / scale] for e in reconstitute(stream)]  # type: ignore[misc]


def _fed(network: Network, given: dict[str, list[Element]]) -> list[Element]:
    return [e for source, batch in given.items() for e in network.process_batch(source, batch)]


def test_distinct_moves_below_a_join() -> None:
    """D8: each plan's part, and the whole; results cut the lifetimes otherwise than ours do, so
    that compared is what is there at each half of a unit."""
    case = vectors("pipes")["D8"]
    given = {name: _rows(rows) for name, rows in case["input"].items()}
    fork, ends = Fork(343), [Stable(INFINITY)]
    parts = {
        name: fork.divide([doubled(e) for e in [*batch, *ends]]) for name, batch in given.items()
    }
    old = _seen(_fed(build(BELOW), {name: part[0] for name, part in parts.items()}), 2)
    new = _seen(_fed(build(ABOVE), {name: part[1] for name, part in parts.items()}), 2)
    assert _covered(old) == _covered(case["expect"]["old"])
    assert _covered(new) == _covered(case["expect"]["new"])
    assert ["b", 160, 171.5] in old
    assert ["b", 171.5, 261] in new
    migrating = GenMig(build(BELOW))
    emitted = _fed_by_start(migrating, given, migrate_after=70, width=101)
    assert _covered(_seen(emitted, 1)) == _covered(case["expect"]["fused"])
    assert _seen(emitted, 1) == [["a", 20, 221], ["b", 160, 261]]  # none is cut


def _fed_by_start(
    migrating: GenMig, given: dict[str, list[Element]], migrate_after: int, width: int
) -> list[Element]:
    """Inserts in order of their starts, each behind the stables of both inputs."""
    by_start = sorted((e.vs, name, e) for name, batch in given.items() for e in batch)  # type: ignore[union-attr]
    emitted: list[Element] = []
    for start, name, element in by_start:
        for each in given:
            emitted += migrating.process_batch(each, [Stable(start)])
        emitted += migrating.process_batch(name, [element])
        if start == migrate_after:
            assert migrating.migrate(build(ABOVE), width) == 343
    assert migrating.is_done
    for each in given:
        emitted += migrating.process_batch(each, [Stable(INFINITY)])
    assert migrating.fuse is None
    return emitted


def test_the_reference_point_is_right_for_joins_and_wrong_for_distinct() -> None:
    """Negative control (29.4.1): the old plan gets lifetimes whole, and of the new one's results
    those that start at T are left out in the place of fusing them. D8 with and without distinct."""
    rows = vectors("pipes")["D8"]["input"]
    given = {name: [doubled(element) for element in _rows(of)] for name, of in rows.items()}
    fork = Fork(343)
    parts = {
        name: ([e for e in of if e.vs < fork.split], fork.divide(of)[1])  # type: ignore[union-attr]
        for name, of in given.items()
    }

    def covered(old: Query, new: Query) -> Counter[tuple[Any, float]]:
        found = _fed(build(old), {name: part[0] for name, part in parts.items()})
        later = _fed(build(new), {name: part[1] for name, part in parts.items()})
        kept = [row for row in _seen(later, 2) if row[1] > fork.split / 2]
        return _covered([*_seen(found, 2), *kept])

    joined = A.join(B, "k")
    assert covered(joined, B.join(A, "k")) == _covered(_seen(_fed(build(joined), given), 2))
    missing = _covered(_seen(_fed(build(BELOW), given), 2)) - covered(BELOW, ABOVE)
    assert missing == _covered([["b", 251, 261]])


def test_a_migration_ends_where_all_inputs_have_come_to_its_instant() -> None:
    migrating = GenMig(build(BELOW))
    migrating.process_batch("A", [Insert(("a",), 20, 30), Stable(20)])
    assert migrating.migrate(build(ABOVE), 10) == 61
    migrating.process_batch("A", [Stable(31)])
    migrating.process_batch("B", [Insert(("a",), 25, 35), Stable(30)])
    assert not migrating.is_done
    assert migrating.process_batch("B", [Stable(31)])[-1] == Stable(31)
    assert migrating.is_done


def test_before_any_input_there_is_nothing_to_hand_over() -> None:
    migrating = GenMig(build(BELOW))
    migrating.process_batch("A", [Stable(20)])
    with pytest.raises(ValueError, match="no input has begun"):
        migrating.migrate(build(ABOVE), 10)


def test_an_event_that_is_longer_than_the_width_is_refused() -> None:
    migrating = GenMig(build(BELOW))
    migrating.process_batch("A", [Insert(("a",), 20, 31)])
    with pytest.raises(ValueError, match="an input event ends at 31, more than 10 behind"):
        migrating.migrate(build(ABOVE), 10)


def test_plans_that_mean_different_things_are_noticed() -> None:
    migrating = GenMig(build(A.union(B)))
    migrating.process_batch("A", [Insert(("a",), 0, 1)])
    migrating.migrate(build(A.distinct().union(B)), 10)
    migrating.process_batch("A", [Insert(("a",), 5, 15), Insert(("a",), 5, 15), Stable(12)])
    with pytest.raises(ValueError, match=r"at 10\.5 one of two plans has what the other has not"):
        migrating.process_batch("B", [Stable(12)])


def test_an_interval_is_clipped_on_both_sides_before_and_after_it_is_revised() -> None:
    fork = Fork(9)
    for element, before, after in (
        (Adjust("p", 4, 8, 13), Adjust("p", 4, 8, 9), Insert("p", 9, 13)),
        (Adjust("p", 4, 13, 8), Adjust("p", 4, 9, 8), Adjust("p", 9, 13, 9)),
        (Adjust("p", 4, 13, 15), None, Adjust("p", 9, 13, 15)),
        (Adjust("p", 4, 13, 4), Adjust("p", 4, 9, 4), Adjust("p", 9, 13, 9)),
        (Adjust("p", 10, 13, 10), None, Adjust("p", 10, 13, 10)),
        (Stable(12), Stable(INFINITY), Stable(12)),
    ):
        assert fork.divide([element]) == ([before] if before else [], [after])


def test_what_is_fused_follows_the_revisions_of_either_part() -> None:
    fuse = Fuse(9)
    assert fuse.process([Insert("p", 4, 9)], []) == []
    assert fuse.held_from(7) == 4
    assert fuse.process([], [Insert("p", 9, 13)]) == [Insert("p", 4, 13)]
    assert fuse.held_from(7) == 7
    assert fuse.process([], [Adjust("p", 9, 13, 15)]) == [Adjust("p", 4, 13, 15)]
    assert fuse.process([Adjust("p", 4, 9, 8)], [Adjust("p", 9, 15, 9)]) == [Adjust("p", 4, 15, 8)]
    assert len(fuse) == 0


@pytest.mark.parametrize("name", _REDUCIBLE)
@pytest.mark.parametrize(
    "runs",
    [25, pytest.param(400, marks=pytest.mark.full), pytest.param(5_000, marks=pytest.mark.deep)],
)
def test_a_migrated_query_means_what_it_meant(name: str, runs: int) -> None:
    """At each instant after each stable, whatever plans, levels, revisions, and whenever."""
    for seed in range(runs):
        _migrated(Random(f"{name} {seed}"), EQUIVALENT[name])


def _finite(rng: Random, query: Query) -> list[tuple[str, Element]]:
    """Legal streams for the sources, interleaved, with revisions, disorder and finite ends."""
    names = sorted(logical.sources(query.plan))
    streams = [
        legal_stream(rng, payloads=ROWS, length=10, horizon=10, endless=False) for _ in names
    ]
    return [(names[port], element) for port, element in interleaved(rng, *streams)]


def _migrated(rng: Random, queries: Sequence[Query]) -> None:
    query = rng.choice(queries)
    migrating = GenMig(build(query, emit=rng.choice(_LEVELS)))
    feeds = _finite(rng, query)
    inputs = {name: TDB() for name in logical.sources(query.plan)}
    output, when = TDB(), rng.randrange(len(feeds))
    emitted: list[Element] = []
    has_begun = False
    for position, (source, element) in enumerate(feeds):
        inputs[source].apply(element)
        for each in migrating.process_batch(source, [element]):
            emitted.append(each)
            output.apply(each)
        has_begun |= type(element) is Insert
        if migrating.new is None and has_begun and position >= when:
            width = max([e.ve - e.vs for _, e in feeds if type(e) is not Stable], default=1)  # type: ignore[union-attr]
            migrating.migrate(build(rng.choice(queries), emit=rng.choice(_LEVELS)), width)
        meant = meaning.meaning(query.plan, inputs)
        for t in range(min(output.stable, _HORIZON)):
            assert snapshot_at(output, t) == snapshot_at(meant, t), (t, emitted)
    if migrating.new is not None:
        assert migrating.is_done
        assert migrating.fuse is None
    assert output.stable == INFINITY
    if all(max(snapshot_at(meant, t).values(), default=0) < 2 for t in range(_HORIZON)):
        assert output == meant, emitted  # G2
