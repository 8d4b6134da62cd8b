"""Replay: whichever technique answers, the result is the query's meaning of the corrected input."""

from collections import Counter
from pathlib import Path
from random import Random

import pytest

from lmerge_service.core import Case, lmerge
from lmerge_service.elements import INFINITY, Element, Insert, Stable
from lmerge_service.errors import ConfigurationError, ReplayError, StateError
from lmerge_service.queries.expressions import col
from lmerge_service.queries.physical import build, physical
from lmerge_service.queries.plan import (
    Query,
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
    BucketArchive,
    FolderStore,
    MemoryStore,
    events_of,
)
from lmerge_service.queries.replay.difference import difference
from lmerge_service.queries.replay.direct import Kept, answered
from lmerge_service.queries.replay.lineage import NUMBER, placing_columns, with_lineage
from lmerge_service.queries.replay.reach import has_reach, reach
from lmerge_service.queries.replay.revising import Reviser, Revision, computed
from tests.queries.composed import SOURCES, drawn, waits
from tests.queries.replay_runs import (
    Events,
    after,
    archived,
    inputs_of,
    meant,
    revision_of,
)
from tests.seeds import seeds

QUOTES = facts("quotes", time="t", fields={"symbol": str, "price": int})
MEANS = QUOTES.windows(hopping(5, every=1)).by("symbol").aggregate(mean=average("price"))
points, one, two = SOURCES["points"], SOURCES["one"], SOURCES["two"]


def quotes(last: int, symbols: str = "AB") -> list[Archived]:
    """A quote of each symbol per time from 0 on."""
    return [
        Archived(at * len(symbols) + which, (symbol, at), at, at + 1)
        for at in range(last)
        for which, symbol in enumerate(symbols)
    ]


def reviser(query: Query, entries: list[Archived], size: int = 10, **bounds: int) -> Reviser:
    archive = BucketArchive(MemoryStore(), size, Bounds(**bounds))
    archive.append(entries)
    return Reviser(query.plan, {"quotes": archive})


def corrected(at: int, price: int, symbol: str = "A") -> Revision:
    old, new = (Insert((symbol, each), at, at + 1) for each in (at, price))
    return Revision("quotes", old, new)


# All techniques agree


@seeds(20)
def test_both_techniques_emit_what_the_corrected_input_means(seeds: range) -> None:
    reached = 0
    for seed in seeds:
        rng = Random(seed)
        plan = drawn(rng, rng.randrange(1, 4)).plan
        inputs = inputs_of(rng, plan)
        every = Reviser(plan, archived(inputs), "all")
        least = Reviser(plan, archived(inputs), "minimal")
        outputs = [meant(plan, inputs)] * 2
        for _ in range(3):
            revision = revision_of(rng, inputs)
            wanted = meant(plan, inputs)
            for at, each in enumerate((every, least)):
                outputs[at] = after(outputs[at], each.revise(revision))
                assert outputs[at] == wanted, (seed, each.technique, str(plan), revision)
        reached += has_reach(plan)
        assert least.replayed <= every.replayed
    assert reached > len(seeds) // 10


LINEAGES = (
    points.where(col.n > 1),
    points.where(col.n > 1).windows(hopping(4, every=2)).by("k").aggregate(n=sum_("n")),
    points.windows(tumbling(3)).by("k").aggregate(n=max_("n")).where(col.n > 1),
    points.select("k", n=col.n + 1).extend(2).join(one.at_most(4).rename(m="n"), "k"),
    points.extend(3).join(points.where(col.n == 1).rename(m="n").extend(1), "k", where=col.m != 2),
    points.union(one.at_most(3)).windows(tumbling(4)).by("k").aggregate(n=count()),
    (
        points.windows(tumbling(2))
        .by("k")
        .aggregate(n=average("n"))
        .join(points.windows(tumbling(6)).by("k").aggregate(m=average("n")), "k")
    ),
)


@seeds(2)
def test_replay_by_archived_lineage_emits_the_same(seeds: range) -> None:
    for seed in seeds:
        for query in LINEAGES:
            rng = Random(seed)
            plan, inputs = query.plan, inputs_of(rng, query.plan, endless=False)
            found = Reviser(plan, archived(inputs), "minimal", BucketArchive(MemoryStore(), 2))
            rewritten = with_lineage(plan)
            assert rewritten is not None
            numbered = {
                name: {((*e.payload, e.sequence), e.vs, e.ve): 1 for e in archive.scan()}
                for name, archive in archived(inputs).items()
            }
            found.archive_output(difference({}, computed(physical(rewritten), numbered)))
            output = meant(plan, inputs)
            for _ in range(4):
                revision = revision_of(rng, inputs)
                output = after(output, found.revise(revision))
                assert output == meant(plan, inputs), (seed, str(query), revision)


@seeds(15)
def test_a_replica_that_replays_and_one_that_answers_directly_merge(seeds: range) -> None:
    for seed in seeds:
        rng = Random(seed)
        query = drawn(rng, rng.randrange(1, 4), of={"one": one, "two": two})
        if waits(query):
            continue
        plan, inputs = query.plan, inputs_of(rng, query.plan)
        network = build(query)
        direct: list[Element] = network.process_batches(
            {n: [Insert(*e) for e in events.elements()] for n, events in inputs.items()}
        )
        replayed: list[Element] = [*difference({}, after(Counter(), direct))]
        replaying = Reviser(plan, archived(inputs), rng.choice(("all", "minimal")))
        for _ in range(3):
            revision = revision_of(rng, inputs)
            direct += network.process_batch(revision.source, revision.elements)
            replayed += replaying.revise(revision)
        wanted = meant(plan, inputs)
        assert after(Counter(), direct) == wanted, seed
        assert _merged(rng, direct, replayed) == wanted, seed


def _merged(rng: Random, *streams: list[Element]) -> Events:
    """What the merge of replicas comes to, in any interleaving."""
    merge, output = lmerge(Case.R4), list[Element]()
    left = {str(at): [*stream, Stable(INFINITY)] for at, stream in enumerate(streams)}
    for name in left:
        merge.attach(name)
    while left:
        name = rng.choice(sorted(left))
        output += merge.process(name, left[name].pop(0))
        left = {each: rest for each, rest in left.items() if rest}
    return after(Counter(), (each for each in output if not isinstance(each, Stable)))


# What is read


def test_minimal_replay_reads_fewer_buckets() -> None:
    entries = quotes(100)
    least, every = reviser(MEANS, entries), reviser(MEANS, entries)
    every.technique = "all"
    changes = [each.revise(corrected(50, 90)) for each in (least, every)]
    assert changes[0] == changes[1]
    assert len(changes[0]) == 10  # five windows, taken away and inserted
    archives = [each.archives["quotes"] for each in (least, every)]
    assert archives[0].read <= 6  # of the number, and of the range
    assert archives[1].read >= 20
    assert least.replayed == 19  # of one group, over less than four windows
    assert every.replayed == 100


def test_lineage_replays_the_windows_of_the_revised_number_alone() -> None:
    entries = quotes(100)
    narrow = Reviser(
        MEANS.plan,
        reviser(MEANS, entries).archives,
        "minimal",
        BucketArchive(MemoryStore(), 10),
    )
    plan = with_lineage(MEANS.plan)
    assert plan is not None
    given: dict[object, int] = {((*e.payload, e.sequence), e.vs, e.ve): 1 for e in entries}
    narrow.archive_output(difference({}, computed(physical(plan), {"quotes": given})))  # type: ignore[dict-item]
    assert narrow.revise(corrected(50, 90)) == reviser(MEANS, entries).revise(corrected(50, 90))
    assert narrow.replayed == 9


def test_a_late_insertion_into_an_empty_window_has_no_lineage_and_is_found_by_the_plan() -> None:
    query = QUOTES.windows(tumbling(5)).by("symbol").aggregate(n=count())
    found = Reviser(
        query.plan, reviser(query, quotes(5)).archives, "minimal", BucketArchive(MemoryStore())
    )
    late = Insert(("A", 3), 22, 23)
    assert found.revise(Revision("quotes", None, late)) == [Insert(("A", 1), 20, 25)]
    assert found.revise(Revision("quotes", late, None))[0].payload == ("A", 1)


def test_columns_that_decide_where_a_row_goes() -> None:
    query = (
        QUOTES.where(col.price > 3)
        .windows(tumbling(5))
        .by("symbol")
        .aggregate(top=max_("price"), n=count())
        .where(col.n > 2)
    )
    assert placing_columns(query.plan) == {"quotes": {"price", "symbol"}}
    assert placing_columns(MEANS.plan) == {"quotes": {"symbol"}}
    assert placing_columns(MEANS.where(col.mean > 2.0).plan) == {"quotes": {"price", "symbol"}}


def test_reach_is_that_of_the_windows() -> None:
    found = reach(MEANS.plan, {"quotes": (20, 21)})
    assert found is not None
    assert (found.least, found.greatest) == (16, 25)
    assert (found.since, found.before) == ({"quotes": 12}, {"quotes": 30})
    assert reach(QUOTES.distinct().plan, {"quotes": (20, 21)}) is None
    assert reach(QUOTES.by("symbol").last_rows(2).plan, {"quotes": (20, 21)}) is None


def test_plans_that_put_rows_together_have_no_lineage() -> None:
    for query in (
        QUOTES.distinct(),
        QUOTES.by("symbol").last_rows(1),
        QUOTES.aggregate(n=count()),
        QUOTES.left_join(QUOTES.rename(other="price"), "symbol"),
    ):
        assert with_lineage(query.plan) is None
        with pytest.raises(ConfigurationError, match="carry no lineage"):
            Reviser(query.plan, {}, "minimal", BucketArchive(MemoryStore()))
    numbered = with_lineage(QUOTES.plan)
    assert numbered is not None
    assert NUMBER in str(numbered)


# Limits


def test_a_revision_behind_the_horizon_is_refused_as_a_whole() -> None:
    found = reviser(MEANS, quotes(100), count=40)
    archive = found.archives["quotes"]
    with pytest.raises(ReplayError, match="reaches behind the archive") as error:
        found.revise(corrected(70, 90))
    assert error.value.needed <= error.value.horizon == 80
    held = events_of(archive.scan(archive.horizon + 1))
    assert len(found.revise(corrected(90, 70))) == 10
    assert events_of(archive.scan(archive.horizon + 1)) != held
    assert len(held) == 40


def test_what_is_to_be_revised_must_be_there() -> None:
    found = reviser(MEANS, quotes(100))
    for number in (None, 3):
        revision = Revision("quotes", Insert(("A", 7), 8, 9), None, number)
        with pytest.raises(ConfigurationError, match="has no event"):
            found.revise(revision)
    with pytest.raises(ValueError, match="takes an event away"):
        Revision("quotes")


@pytest.mark.parametrize(
    ("bounds", "kept"),
    [
        (Bounds(count=25), 30),
        (Bounds(age=20), 40),
        (Bounds(bytes=1), 10),
        (Bounds(), 200),
        (Bounds(count=25, age=5), 10),
    ],
)
def test_an_archive_is_bounded_by_count_age_and_bytes(bounds: Bounds, kept: int) -> None:
    archive = BucketArchive(MemoryStore(), 10, bounds)
    archive.append(quotes(100))
    assert len(archive) == 200  # nothing goes before a replay is about to run
    archive.expire()
    assert len(archive) == kept
    held = archive.scan(archive.horizon + 1)
    assert [e.ve for e in held] == [e.ve for e in quotes(100) if e.ve > archive.horizon]


# Files


def test_an_archive_of_files_goes_on_behind_a_crash(tmp_path: Path) -> None:
    entries = quotes(50)
    archive = BucketArchive(FolderStore(tmp_path), 30)
    archive.append(entries[:70])
    (tmp_path / "3_60_89_30_45_30.bucket.partial").write_bytes(b"half of a buck")
    again = BucketArchive(FolderStore(tmp_path), 30)  # what was not written is lost
    assert (len(again), again.next) == (60, 60)
    again.append(entries[again.next :])
    again.flush()
    assert again.scan() == entries
    assert sorted(each.suffix for each in tmp_path.iterdir()) == [".bucket"] * 4
    again.forget(20)
    third = BucketArchive(FolderStore(tmp_path), 30)
    assert (third.horizon, third.next) == (again.horizon, 100)
    with pytest.raises(ReplayError):
        third.scan()
    assert third.scan(third.horizon + 1) == [e for e in entries if e.ve > third.horizon]
    third.clear()
    assert BucketArchive(FolderStore(tmp_path), 30).next == 100


def test_a_damaged_bucket_is_found(tmp_path: Path) -> None:
    archive = BucketArchive(FolderStore(tmp_path), 10)
    archive.append(quotes(5))
    (bucket,) = tmp_path.iterdir()
    bucket.write_bytes(bucket.read_bytes()[:-1])
    with pytest.raises(StateError, match="cannot be read"):
        archive.scan()
    bucket.unlink()
    with pytest.raises(StateError, match="cannot be used"):
        archive.scan()
    (tmp_path / "notes.txt").touch()
    with pytest.raises(StateError, match="no bucket"):
        BucketArchive(FolderStore(tmp_path), 10)
    with pytest.raises(StateError, match="cannot be used"):
        FolderStore(tmp_path / "notes.txt")


def test_no_direct_answer_without_values() -> None:
    assert answered(Kept("min", 3, 1), 3, None) is None
    assert answered(Kept("average", 3, 1), 3, None) is None
    assert answered(Kept("min", 3, 2), 5, 1) == Kept("min", 1, 2)
    assert answered(Kept("count", 2, 2), None, 4) == Kept("count", 3, 3)
    with pytest.raises(ConfigurationError, match="of no values"):
        answered(Kept("sum", 0, 0), 3, None)
    with pytest.raises(ConfigurationError, match="cannot be corrected"):
        answered(Kept("median", 3, 1), 3, 4)
