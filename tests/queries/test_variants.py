"""All plans of a query are one query: merged by the real operator, judged after every element."""

from collections.abc import Sequence
from random import Random

from lmerge_service.core import Case, LMerge, lmerge
from lmerge_service.elements import INFINITY, Element
from lmerge_service.queries import logical
from lmerge_service.queries.meaning.plans import meaning
from lmerge_service.queries.physical import PhysicalPlan
from lmerge_service.queries.plan import Query
from lmerge_service.queries.plan_numbering import numbered_plans
from lmerge_service.queries.properties import case
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


def some_plans(rng: Random, query: Query) -> list[PhysicalPlan]:
    """Three to five plans: the query as it is written, and others."""
    every = numbered_plans(query, 12)
    return [every[0], *rng.sample(every[1:], min(len(every) - 1, rng.randrange(2, 5)))]
