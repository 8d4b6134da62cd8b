"""Replay against the worked examples of the paper (tests/vectors/borealis.json)."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from lmerge_service.elements import Insert
from lmerge_service.errors import ReplayError
from lmerge_service.queries.expressions import col
from lmerge_service.queries.module_library import time_weighted_average
from lmerge_service.queries.physical import physical
from lmerge_service.queries.plan import (
    Query,
    apply,
    average,
    count,
    facts,
    hopping,
    max_,
    sum_,
    tumbling,
)
from lmerge_service.queries.replay.archive import (
    Archived,
    Bounds,
    Bucket,
    BucketArchive,
    MemoryStore,
)
from lmerge_service.queries.replay.difference import difference
from lmerge_service.queries.replay.direct import Kept, answered
from lmerge_service.queries.replay.lineage import (
    Interval,
    composed,
    minimal_sequence,
    rows_with,
    spans,
    with_lineage,
)
from lmerge_service.queries.replay.revising import (
    Reviser,
    Revision,
    RevisionKind,
    computed,
)
from tests.queries.vectors import cases, vectors

VECTORS = vectors("borealis")
QUOTES = facts("quotes", time="t", fields={"symbol": str, "price": int})


def case(id_: str) -> tuple[Any, Any]:
    """What is given and what is expected."""
    return VECTORS[id_]["given"], VECTORS[id_]["expect"]


def quote(time: int, price: int, symbol: str = "IBM") -> Insert[Any]:
    return Insert((symbol, price), time, time + 1)


def archive_of(quotes: Iterable[Insert[Any]], size: int = 1, **bounds: int) -> BucketArchive:
    """Numbered by their times."""
    archive = BucketArchive(MemoryStore(), size, Bounds(**bounds))
    archive.append(Archived(e.vs, e.payload, e.vs, e.ve) for e in quotes)
    return archive


def numbers(entries: Iterable[Archived]) -> list[int]:
    return sorted({entry.sequence for entry in entries})


def reviser(query: Query, archive: BucketArchive, technique: Any = "minimal") -> Reviser:
    return Reviser(query.plan, {"quotes": archive}, technique)


def with_rows(query: Query, archive: BucketArchive) -> Reviser:
    """One that has archived its output, with lineage."""
    found = Reviser(query.plan, {"quotes": archive}, "minimal", BucketArchive(MemoryStore(), 1))
    plan = with_lineage(query.plan)
    assert plan is not None
    archive.flush()
    rows = {((*e.payload, e.sequence), e.vs, e.ve): 1 for e in archive.scan(archive.horizon + 1)}
    found.archive_output(difference({}, computed(physical(plan), {"quotes": rows})))
    return found


# What a revision is


def test_an_update_ends_a_validity_and_a_revision_corrects_it() -> None:
    given, expect = case("bo-fig1")
    start, at, value, hour = (given[n] for n in ("start", "at_minute", "value", "hour_minutes"))
    prices = facts("prices", time="t", until="until", fields={"price": float})
    module = apply(time_weighted_average, "price", {"price": float}, clipping="full")
    hourly = prices.windows(tumbling(hour)).apply(module)

    def averages(*timeline: list[int]) -> list[Any]:
        events = {((float(p),), vs, ve): 1 for p, vs, ve in timeline}
        return [payload[0] for payload, _, _ in computed(physical(hourly), {"prices": events})]

    assert expect["update_timeline"] == [[start, 0, at], [value, at, hour]]
    assert averages(*expect["update_timeline"]) == [expect["update"]]
    assert averages(*expect["revision_timeline"]) == [expect["revision"]]
    archive = BucketArchive(MemoryStore(), 1)
    archive.append([Archived(0, (float(start),), 0, hour)])
    revision = Revision(
        "prices", Insert((float(start),), 0, hour), Insert((float(value),), 0, hour)
    )
    changes = Reviser(hourly.plan, {"prices": archive}).revise(revision)
    assert [e.payload for e in changes if isinstance(e, Insert)] == [(float(expect["revision"]),)]


def test_kinds_of_revisions_and_answers_to_them() -> None:
    _, expect = case("bo-kinds")
    old, new = quote(1, 75), quote(1, 72)
    kinds = [Revision("quotes", old, new), Revision("quotes", old), Revision("quotes", None, new)]
    assert [each.kind for each in kinds] == [*RevisionKind]
    assert [str(kind) for kind in RevisionKind] == [
        each.removesuffix(" of a non-key field") for each in expect["kinds"]
    ]
    query = QUOTES.windows(tumbling(5)).aggregate(top=max_("price"))
    archive = archive_of([old])
    changes = reviser(query, archive).revise(kinds[0])
    assert changes, expect["answers"][2]
    corrected = [e for e in archive.scan() if e.times > 0][-1]
    assert corrected.payload == new.payload, expect["answers"][1]


def test_requirements_of_replay() -> None:
    """Each is a property of what is archived and computed."""
    _, expect = case("bo-requirements")
    ordered, kept, deterministic = expect["requirements"]
    archive = archive_of(map(quote, range(1, 8), range(7)), count=4)
    archive.expire()
    assert numbers(archive.scan(archive.horizon + 1)) == [4, 5, 6, 7], (ordered, kept)
    query = QUOTES.windows(hopping(3, every=1)).by("symbol").aggregate(mean=average("price"))
    events = {(e.payload, e.vs, e.ve): 1 for e in map(quote, range(9), range(9))}
    runs = [computed(physical(query), {"quotes": events}) for _ in range(2)]
    assert runs[0] == runs[1], deterministic


# Direct answers


def test_which_aggregates_are_corrected_directly() -> None:
    given, expect = case("bo-direct")
    kept = {"avg": Kept("average", 74, 5), "sum": Kept("sum", 370, 5), "max": Kept("max", 75, 5)}
    changes = {
        "replace": (73, 72),
        "delete": (73, None),
        "replace the value that was the maximum": (75, 72),
        "replace another value by a smaller one": (73, 72),
    }
    found = [answered(kept[what], *changes[how]) is not None for what, how in given["cases"]]
    assert found == expect["direct"]


def test_an_average_is_corrected_directly() -> None:
    given, expect = case("bo-direct-avg")
    found = answered(Kept("average", given["average"], given["count"]), given["old"], given["new"])
    assert found == Kept("average", expect["average"], given["count"])


# Minimal replay sequences


def windows(first: int, last: int, size: int, slide: int, without: int = -1) -> dict[Any, Any]:
    """The lineage of full windows over tuples numbered by minute, the first from `first` on."""
    found = {}
    for start in range(first, last - size + 2, slide):
        found[start] = frozenset(t for t in range(start, start + size) if t != without)
    return found


@pytest.mark.parametrize("id_", [each["id"] for each in cases("borealis", "bo-mrs-")])
def test_minimal_replay_sequences(id_: str) -> None:
    given, expect = case(id_)
    if id_ == "bo-mrs-union":
        lineage = {o: frozenset(of) for o, of in given["lineage"].items()}
        assert sorted(minimal_sequence(lineage, lineage, given["revised"])) == expect["replay"]
        assert [o for o, of in lineage.items() if given["revised"] in of] == expect["outputs"]
        return
    size, slide, revised, kind = (given[n] for n in ("size", "slide", "revised", "kind"))
    whole = windows(1, given["tuples"], size, slide)
    lacking = windows(1, given["tuples"], size, slide, without=revised)
    before, after = {
        "replacement": (whole, whole),
        "deletion": (whole, lacking),
        "late insertion": (lacking, whole),
    }[kind]
    assert sorted(minimal_sequence(before, after, revised)) == expect["replay"]
    _check_replay_holds(given, set(expect["replay"]))


def _check_replay_holds(given: dict[str, Any], minimal: set[int]) -> None:
    """What is replayed has all of the minimal sequence, and, by lineage, only what windows share
    that are not full at the edges."""
    size, revised = given["size"], given["revised"]
    quotes = [quote(t, t) for t in range(1, given["tuples"] + 1)]
    query = QUOTES.windows(hopping(size, every=given["slide"], origin=1)).aggregate(
        mean=average("price")
    )
    new = None if given["kind"] == "deletion" else quote(revised, 7)
    old = None if given["kind"] == "late insertion" else quote(revised, revised)
    there = [q for q in quotes if old is not None or q.vs != revised]
    revision = Revision("quotes", old, new, None if old is None else revised)
    found = reviser(query, archive_of(there)).replay_sequence(revision)["quotes"]
    assert minimal - {revised} <= set(numbers(found))
    assert len(found) <= 5 * size
    if old is not None:
        narrow = with_rows(query, archive_of(there)).replay_sequence(revision)["quotes"]
        assert minimal <= set(numbers(narrow)) <= set(numbers(found))


def test_what_has_not_changed_is_not_emitted() -> None:
    given, expect = case("bo-supersequence")
    events = [
        {((o, v), 0, 1): 1 for o, *vs in given["revisions"] for v in [vs[at]]} for at in (0, 1)
    ]
    emitted = difference(*events)
    ((name, old, new),) = expect["emitted"]
    assert sorted(str(each.payload) for each in emitted) == [str((name, old)), str((name, new))]


# Figures 4 and 5: windows of rows, here by the numbers of the rows


def row_windows(tuples: list[str], size: int) -> list[list[str]]:
    return [tuples[at : at + size] for at in range(0, len(tuples) - size + 1, size)]


def chain() -> tuple[Query, Query]:
    """Two aggregates, one behind the other, of two rows each; rows are a minute apart from 1 on."""
    first = QUOTES.windows(tumbling(2, origin=1)).aggregate(price=sum_("price"))
    return first, first.windows(tumbling(4, origin=1)).aggregate(price=sum_("price"))


def test_a_chain_of_windows() -> None:
    given, expect = case("bo-fig4-windows")
    first = row_windows(given["tuples"], given["size"])
    named = {f"o{at}": each for at, each in enumerate(first, 1)}
    assert named == expect["a1"]
    assert {"u1": row_windows(list(named), given["size"])[0]} == expect["a2"]


def test_lineage_of_a_chain() -> None:
    given, expect = case("bo-fig4-lineage")
    archive = archive_of(quote(at, at) for at in given["tuples"].values())
    for query, names in zip(chain(), (("o1", "o2"), ("u1",)), strict=True):
        lineage = with_rows(query, archive).lineage
        assert lineage is not None
        found = sorted(list(row.payload[1:]) for row in lineage.scan())
        assert found == [expect[name] for name in names]


def test_the_replay_of_a_chain() -> None:
    given, expect = case("bo-fig4-replay")
    inner = {"o1": frozenset({"t1", "t2"}), "o2": frozenset({"t3", "t4"})}
    outer = composed({"u1": frozenset(inner)}, inner)
    revised = given["revised"]
    assert sorted(minimal_sequence(inner, inner, revised)) == expect["replay_for_a1"]
    assert sorted(minimal_sequence(outer, outer, revised)) == expect["replay_for_network"]
    _check_chain([1, 2, 3, 4], 3, 30, expect)


def _check_chain(values: list[int], revised: int, new: int, expect: dict[str, Any]) -> None:
    """What each aggregate of the chain has of the whole replay sequence, before and after."""
    old = {(("IBM", value), at, at + 1): 1 for at, value in enumerate(values, 1)}
    key = ("IBM", values[revised - 1]), revised, revised + 1
    fresh = {k: n for k, n in old.items() if k != key} | {(("IBM", new), *key[1:]): 1}
    for query, out, name in zip(chain(), ("a1_out", "a2_out"), "ou", strict=True):
        before, after = (
            sorted((vs, p[0]) for p, vs, _ in computed(physical(query), {"quotes": each}))
            for each in (old, fresh)
        )
        found = [
            ("replay", f"{name}{at}", was) if was == now else ("revision", f"{name}{at}", was, now)
            for at, ((_, was), (_, now)) in enumerate(zip(before, after, strict=True), 1)
        ]
        if expect[out][0][0] in ("replay", "revision"):
            assert [list(each) for each in found] == expect[out]
        else:
            assert [[each[1], each[0]] for each in found] == expect[out]


def test_values_of_a_chain() -> None:
    given, expect = case("bo-fig4-values")
    _, old, new = given["revised"]
    _check_chain(given["values"], 3, new, expect)
    names = {("a1", 1): "o1", ("a1", 3): "o2", ("a2", 1): "u1"}
    archive = archive_of(map(quote, range(1, 5), given["values"]))
    changes = reviser(chain()[1], archive).revise(Revision("quotes", quote(3, old), quote(3, new)))
    assert [e.payload[0] for e in changes] == [expect["before"]["u1"], expect["after"]["u1"]]
    assert set(names.values()) == set(expect["before"])


@pytest.mark.parametrize("technique", ["all", "minimal"])
def test_replays_of_a_chain_by_technique(technique: str) -> None:
    given, expect = case("bo-fig4-ra" if technique == "all" else "bo-fig4-rm")
    key = "archive" if technique == "all" else "input_archive"
    archive = archive_of(quote(at, at) for at in given[key])
    revision = Revision("quotes", quote(3, 3), quote(3, 9), given["revised"])
    found = reviser(chain()[1], archive, technique)
    if technique == "minimal":
        found = with_rows(chain()[1], archive)
        assert found.lineage is not None
        archived = [["u1", *row.payload[1:]] for row in found.lineage.scan()]
        assert archived == given["output_archive"]
    assert numbers(found.replay_sequence(revision)["quotes"]) == expect["replay"]


@pytest.mark.parametrize("id_", ["bo-fig5-a", "bo-fig5-b", "bo-fig5-c"])
def test_windows_of_rows_are_realigned(id_: str) -> None:
    given, expect = case(id_)
    found = row_windows(given["tuples"], given["size"])
    assert found == expect["windows"]
    original = VECTORS["bo-fig5-a"]["expect"]["named"]
    before = {name: frozenset(of) for name, of in original.items()}
    after = {f"n{at}": frozenset(of) for at, of in enumerate(found)}
    revised = {"bo-fig5-a": "none", "bo-fig5-b": "t2", "bo-fig5-c": "t3"}[id_]
    sequence = minimal_sequence(before, after, revised)
    if id_ == "bo-fig5-a":
        assert not sequence
        return
    gone = {name for name, of in before.items() if of not in set(after.values())}
    if id_ == "bo-fig5-b":
        assert gone == {*expect["deleted"], *expect["changed"]}
        assert len(set(after.values()) - set(before.values())) == len(gone)
    assert sequence == {*given["tuples"], "t3"}  # all, and what was there before


def test_windows_of_rows_are_replayed_to_the_newest() -> None:
    given, expect = case("bo-row-tail")
    size, revised = given["size"], given["revised"]
    whole = list(range(1, given["tuples"] + 1))
    lacking = [t for t in whole if t != revised]

    def lineage(tuples: list[int]) -> dict[Any, frozenset[int]]:
        # the last window may not be full: it is replayed as well
        parts = [tuples[at : at + size] for at in range(0, len(tuples), size)]
        return {at: frozenset(part) for at, part in enumerate(parts)}

    for kind, (before, after) in {
        "replacement": (whole, whole),
        "late_insertion": (lacking, whole),
        "deletion": (whole, lacking),
    }.items():
        found = minimal_sequence(lineage(before), lineage(after), revised)
        assert sorted(found) == expect[kind], kind


# Replay-Minimal by archived intervals


def test_rows_that_hold_a_revised_number() -> None:
    given, expect = case("bo-rm-query")
    rows = [(name, {"s": Interval(first, last)}) for name, first, last in given["output_archive"]]
    archive = archive_of(quote(at, at) for at in given["input_archive"])
    for revised, names, replay in zip(
        given["revised"], expect["rows"], expect["replay"], strict=True
    ):
        found = rows_with(rows, "s", revised)
        assert [name for name, _ in found] == names
        assert numbers(archive.numbered(*spans(i for _, i in found)["s"])) == replay


def test_rows_of_two_streams() -> None:
    given, expect = case("bo-rm-two-streams")
    (row,) = given["output_archive"]
    intervals = {k: Interval(row[f"S{k}"], row[f"E{k}"]) for k in given["inputs"]}
    stream, revised = given["revised"]
    found = spans(i for _, i in rows_with([(row["id"], intervals)], str(stream), revised))
    replay = [
        [int(k), entry.sequence]
        for k, times in given["inputs"].items()
        for entry in archive_of(quote(t, t) for t in times).numbered(*found[k])
    ]
    assert sorted(replay, key=lambda each: each[1]) == expect["replay"]


def test_intervals_hold_more_than_the_lineage() -> None:
    given, expect = case("bo-rm-not-minimal")
    archive = archive_of(
        quote(at, at, "A" if at in (1, 9) else "B") for at in given["input_archive"]
    )
    lineage = {"o": frozenset(given["lineage"])}
    assert sorted(minimal_sequence(lineage, lineage, given["revised"])) == expect["minimal"]
    query = QUOTES.where(col.symbol == "A").windows(tumbling(10)).aggregate(n=count())
    revision = Revision("quotes", quote(9, 9, "A"), None, given["revised"])
    sequence = with_rows(query, archive).replay_sequence(revision)["quotes"]
    assert numbers(sequence) == expect["rm"]


def test_only_the_group_of_the_revision_is_replayed() -> None:
    given, expect = case("bo-group")
    archive = archive_of(quote(at, at, symbol) for at, symbol in given["archive"])
    query = QUOTES.windows(tumbling(10)).by("symbol").aggregate(mean=average("price"))
    at, symbol = given["revised"]
    revision = Revision("quotes", quote(at, at, symbol), quote(at, 9, symbol))
    found = reviser(query, archive, "all").replay_sequence(revision)["quotes"]
    assert (given["technique"], numbers(found)) == ("RA", expect["replay"])


def test_lineage_by_operator() -> None:
    given, expect = case("bo-lineage-ops")
    (a, _), (b, _) = given["inputs"].values()
    archive = archive_of([quote(a, 1, "a"), quote(b, 2, "b")])
    one = QUOTES.where(col.symbol == "a")
    both = QUOTES.extend(9).select(n=1, price=col.price)
    queries = {
        "filter_a": one,
        "map_b": QUOTES.where(col.symbol == "b").select(twice=col.price * 2),
        "aggregate_ab": QUOTES.windows(tumbling(10)).aggregate(n=count()),
        "join_ab_same_stream": both.where(col.price == 1).join(
            both.where(col.price == 2).rename(other="price"), on="n"
        ),
    }
    for name, query in queries.items():
        lineage = with_rows(query, archive).lineage
        assert lineage is not None
        (row,) = lineage.scan()
        assert list(row.payload[-2:]) == expect[name], name


# The archive


def test_a_replay_that_reaches_behind_the_archive_is_refused() -> None:
    given, expect = case("bo-archive-limit")
    size = given["size"]
    whole = windows(1, given["tuples"], size, given["slide"])
    found: list[str] = []
    for revised, (first, last) in zip(given["revised"], expect["replay"], strict=True):
        minimal = sorted(minimal_sequence(whole, whole, revised))
        assert (minimal[0], minimal[-1]) == (first, last)
        archive = archive_of((quote(t, t) for t in range(1, 101)), count=given["tau"])
        archive.expire()
        assert numbers(archive.scan(archive.horizon + 1)) == [*range(91, 101)]
        try:
            archive.numbered(first, last)
            found.append("ok")
        except ReplayError:
            found.append("error")
    assert found == expect["outcome"]


def test_batches_go_into_the_archive_before_a_revision() -> None:
    given, expect = case("bo-batching")
    archive = BucketArchive(MemoryStore(), given["k"])
    for at, arrival in enumerate(given["arrivals"]):
        if arrival == "r":
            archive.flush()
        else:
            archive.append([Archived(at, ("IBM", at), at, at + 1)])
    assert [bucket.entries for bucket in archive.buckets] == expect["batches"]


def test_buckets_that_a_replay_reads_and_that_expire() -> None:
    given, expect = case("bo-buckets")
    archive = archive_of((quote(t, t) for t in given["times"]), given["k"])
    archive.flush()

    def ranges(buckets: Iterable[Bucket]) -> list[list[int]]:
        return [[bucket.start, bucket.end - 1] for bucket in buckets]

    assert ranges(archive.buckets) == expect["ranges"]
    first, last = given["replay"]
    assert numbers(archive.scan(first + 1, last + 1)) == [*range(first, last + 1)]
    assert archive.read == len(expect["scanned"])
    kept = [each for each in expect["ranges"] if each not in expect["truncated"]]
    archive.forget(given["expire_before"])
    assert ranges(archive.buckets) == kept


def test_all_examples_are_tested() -> None:
    wanted = {each["id"] for each in VECTORS.values() if each["kind"] != "measurement"}
    source = Path(__file__).read_text()
    assert [id_ for id_ in wanted if f'"{id_}"' not in source] == [
        id_ for id_ in wanted if id_.startswith("bo-mrs-") and id_ != "bo-mrs-union"
    ]
    assert len(wanted) == 34
