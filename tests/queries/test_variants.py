"""All plans of a query are one query: merged by the real operator, judged after every element."""

from collections.abc import Mapping, Sequence
from random import Random

from lmerge_service.core import Case, LMerge, lmerge
from lmerge_service.elements import INFINITY, START, Element, Insert, Stable
from lmerge_service.queries import logical
from lmerge_service.queries.meaning.plans import meaning
from lmerge_service.queries.physical import PhysicalPlan
from lmerge_service.queries.plan import Query
from lmerge_service.queries.plan_numbering import numbered_plans
from lmerge_service.queries.properties import case, has_exact_starts, required_history
from lmerge_service.tdb import TDB, compatibility, multiset_compatibility
from tests.queries.composed import drawn
from tests.queries.promises import tdb_of
from tests.queries.streams import interleaved
from tests.queries.test_stream_properties import WITH_KEYS, streams_for
from tests.seeds import seeds


class Merged:
    """Plans of one query, and the merge of their outputs under their common case."""

    def __init__(self, plans: Sequence[PhysicalPlan]) -> None:
        self.plans = plans
        self.networks = [plan.begin() for plan in plans]
        self.inputs = [TDB() for _ in plans]
        self.output = TDB()
        self.case = case(plans)
        self.merge: LMerge = lmerge(self.case)
        for number in range(len(plans)):
            self.merge.attach(str(number))

    def feed(self, number: int, source: str, batch: Sequence[Element]) -> None:
        for element in self.networks[number].process_batch(source, batch):
            self.inputs[number].apply(element)
            for merged in self.merge.process(str(number), element):
                self.output.apply(merged)
            self.judge()

    def judge(self) -> None:
        assert not self.merge.breaches(), self.merge.breaches()
        leading = max(self.inputs, key=lambda tdb: tdb.stable)
        assert self.output.stable == leading.stable
        if self.case in (Case.R1, Case.R4):  # without a key
            broken = multiset_compatibility(leading, self.output)
        else:
            broken = compatibility(self.inputs, self.output)
        assert not broken, broken


@seeds(12, deep=10_000, most=40)
def test_plans_of_a_query_merge_to_its_meaning(seeds: range) -> None:
    for seed in seeds:
        check_merge(seed)


def check_merge(seed: int) -> None:
    rng = Random(seed)
    query = drawn(rng, rng.randrange(1, 5), of=WITH_KEYS)
    plans = some_plans(rng, query)
    streams = streams_for(rng, query)
    names = sorted(logical.sources(query.plan))
    merged = Merged(plans)
    feeds = [interleaved(rng, *streams) for _ in plans]
    while any(feeds):
        number = rng.choice([n for n, left in enumerate(feeds) if left])
        port, batch = feeds[number][0][0], [feeds[number].pop(0)[1]]
        while feeds[number] and feeds[number][0][0] == port and rng.random() < 0.4:
            batch.append(feeds[number].pop(0)[1])
        merged.feed(number, names[port], batch)
    given = {name: tdb_of(stream) for name, stream in zip(names, streams, strict=True)}
    wanted = meaning(query.plan, given)
    for plan, tdb in zip(plans, merged.inputs, strict=True):
        assert tdb == wanted, (seed, plan)
    assert merged.output == wanted, seed
    assert merged.output.stable == INFINITY


# Replicas that come and go


@seeds(6, deep=10_000, most=40)
def test_plans_that_die_join_and_leave_out_what_does_not_matter_merge_to_its_meaning(
    seeds: range,
) -> None:
    for seed in seeds:
        check_changing(seed)


def check_changing(seed: int) -> None:
    """One of three plans or more is killed, one joins late, with no more than the history that it
    needs, and one leaves out by feedback what does not matter; the first one sees all of it."""
    rng = Random(seed)
    query = drawn(rng, rng.randrange(1, 5), of=WITH_KEYS)
    plans = some_plans(rng, query)
    streams = streams_for(rng, query)
    names = sorted(logical.sources(query.plan))
    given = {name: tdb_of(stream) for name, stream in zip(names, streams, strict=True)}
    changing = Changing(plans, meaning(query.plan, given))
    feeds = [interleaved(rng, *streams) for _ in plans]
    killed, heeding, joining = 1, 2 if len(plans) > 2 else 0, rng.randrange(1, len(plans))
    lives = rng.randrange(len(feeds[killed]) + 1)
    if (late := history_from(rng, plans[joining].plan, given)) is not None:
        point, events = late
        feeds[joining] = [(port, each) for port, name in enumerate(names) for each in events[name]]
        changing.attach(joining, point)
        if joining == killed:
            lives = len(feeds[killed])
    for number in range(len(plans)):
        if number != joining or late is None:
            changing.attach(number)
    while any(feeds):
        number = rng.choice([n for n, left in enumerate(feeds) if left])
        port, element = feeds[number].pop(0)
        changing.feed(number, names[port], element)
        if number == killed and (lives := lives - 1) <= 0:
            changing.kill(number)
            feeds[number] = []
        if heeding and heeding != joining:
            changing.heed(heeding)
    assert changing.output == changing.wanted, seed
    assert changing.output.stable == INFINITY


def history_from(
    rng: Random, plan: logical.Node, given: Mapping[str, TDB]
) -> tuple[int, Mapping[str, list[Element]]] | None:
    """A time from which on a plan is right, and the input that it needs for that: what ends late
    enough, and then the end. None: it needs all."""
    before = rng.randrange(16)
    point = before if has_exact_starts(plan) else before + logical.longest(plan)
    need = required_history(plan, before)
    if point >= INFINITY or START in need.values():
        return None
    found: dict[str, list[Element]] = {}
    for name, tdb in given.items():
        events = [Insert(*event) for event in tdb if event.ve >= need[name]]
        rng.shuffle(events)
        found[name] = [*events, Stable(INFINITY)]
    return point, found


class Changing:
    """The merge of plans of one query, of which not all see all of its input."""

    def __init__(self, plans: Sequence[PhysicalPlan], wanted: TDB) -> None:
        self.wanted = wanted
        self.networks = [plan.begin() for plan in plans]
        self.output = TDB()
        keyless = case(plans) in (Case.R1, Case.R4)
        self.merge: LMerge = lmerge(Case.R4 if keyless else Case.R3)

    def attach(self, number: int, joining_at: int = START) -> None:
        self.merge.attach(str(number), joining_at)
        self.networks[number].skip_before(joining_at)

    def kill(self, number: int) -> None:
        self.merge.detach(str(number))

    def heed(self, number: int) -> None:
        point = self.merge.feedback().get(str(number), START)
        self.networks[number].skip_before(point)

    def feed(self, number: int, source: str, element: Element) -> None:
        for each in self.networks[number].process_batch(source, [element]):
            for merged in self.merge.process(str(number), each):
                assert self.output.violation(merged) is None
                self.output.apply(merged)
            self.judge()

    def judge(self) -> None:
        """What is final is what the query means."""
        assert not self.merge.breaches(), self.merge.breaches()
        stable = self.output.stable
        assert self.output.before(stable) == self.wanted.before(stable)


def some_plans(rng: Random, query: Query) -> list[PhysicalPlan]:
    """Three to five plans: the query as it is written, and others."""
    every = numbered_plans(query, 12)
    return [every[0], *rng.sample(every[1:], min(len(every) - 1, rng.randrange(2, 5)))]
