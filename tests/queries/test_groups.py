"""Group apply: any plan, once per group; it equals the native form where there is one."""

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from lmerge_service.elements import INFINITY, Element, Insert, Stable
from lmerge_service.errors import StateError
from lmerge_service.queries.aggregates import Count
from lmerge_service.queries.meaning import rows as meaning
from lmerge_service.queries.meaning.multisets import combined
from lmerge_service.queries.meaning.semijoins import anti_join
from lmerge_service.queries.network import Network, Part
from lmerge_service.queries.operators.groups import GroupApply
from lmerge_service.queries.operators.last_rows import LastRows
from lmerge_service.queries.operators.multisets import MultisetOps
from lmerge_service.queries.operators.protocol import Changes, Operator
from lmerge_service.queries.operators.semijoins import AntiJoin
from lmerge_service.queries.operators.snapshots import Snapshots
from lmerge_service.queries.operators.stateless import Project, Select
from lmerge_service.tdb import TDB
from tests.queries.promises import Make, Run, check_batches, check_promises
from tests.queries.streams import interleaved, legal_stream
from tests.seeds import seeds

PAYLOADS = ("a1", "a2", "b1", "b2", "c1")


def first(payload: Any) -> str:
    return str(payload[0])


def second(payload: Any) -> str:
    return str(payload[1])


def per_group(meaning: Callable[..., TDB]) -> Callable[..., TDB]:
    """A meaning, group by group."""

    def means(*tdbs: TDB) -> TDB:
        keys = {first(event.payload) for tdb in tdbs for event in tdb}
        parts = [
            meaning(*(TDB(e for e in tdb if first(e.payload) == key) for tdb in tdbs))
            for key in sorted(keys)
        ]
        return TDB(event for part in parts for event in part)

    return means


def without_partner() -> Network:
    """What is in the first input alone, by second character; a network with a shared part."""
    select = Select(lambda p: p != "b2")
    anti = AntiJoin(second, second)
    return Network([Part(select, ["left"]), Part(anti, [0, "right"])], "without partner")


def anti_meaning(left: TDB, right: TDB) -> TDB:
    left = TDB(event for event in left if event.payload != "b2")
    return anti_join(left, right, second, second)


def last_row(tdb: TDB) -> TDB:
    return meaning.last_rows(tdb, 1)


SUBPLANS: dict[str, tuple[Callable[[], Operator | Network], Callable[..., TDB]]] = {
    "last rows": (lambda: LastRows(1), per_group(last_row)),
    "distinct": (lambda: MultisetOps("distinct"), lambda tdb: combined("distinct", tdb)),
    "except": (lambda: MultisetOps("except"), lambda one, two: combined("except", one, two)),
    "network": (without_partner, per_group(anti_meaning)),
}


@pytest.mark.parametrize("name", SUBPLANS)
@seeds(15)
def test_promises(name: str, seeds: range) -> None:
    subplan, means = SUBPLANS[name]
    for seed in seeds:
        rng = Random(seed)
        make: Make = lambda: GroupApply(first, subplan)  # noqa: E731
        ports = make().ports
        streams = [legal_stream(rng, payloads=PAYLOADS) for _ in range(ports)]
        feeds = interleaved(rng, *streams)
        least = lambda run: min(tdb.stable for tdb in run.inputs)  # noqa: E731
        check_promises(make, means, feeds, stable=least)
        check_batches(make, means, feeds, rng)


NATIVE: dict[str, tuple[Callable[[], Operator], Callable[[], Operator]]] = {
    "last_rows": (
        lambda: GroupApply(first, lambda: LastRows(2)),
        lambda: LastRows(2, first),
    ),
    "aggregate": (
        lambda: GroupApply(first, lambda: Snapshots(Count(), by=first)),
        lambda: Snapshots(Count(), by=first),
    ),
    "aggregate on close": (
        lambda: GroupApply(first, lambda: Snapshots(Count(), by=first, emit="on_close")),
        lambda: Snapshots(Count(), by=first, emit="on_close"),
    ),
}


@pytest.mark.parametrize("name", NATIVE)
@seeds(15)
def test_it_emits_what_the_native_form_emits(name: str, seeds: range) -> None:
    """After every element the same TDB and the same stable: a group that comes to be may begin
    no earlier than a new one, and the least of all is what the native form announces."""
    applied, native = NATIVE[name]
    for seed in seeds:
        one, other = Run(applied), Run(native)
        for element in legal_stream(Random(seed), payloads=PAYLOADS, length=16):
            emitted = one.feed(element)
            assert Counter(emitted) == Counter(other.feed(element))


def test_a_group_that_holds_nothing_is_dropped_and_comes_back() -> None:
    operator = GroupApply(first, lambda: MultisetOps("distinct"))
    for t in range(0, 30, 10):
        operator.process_batch([Insert(f"{t}x", t, t + 2), Insert("ax", t, t + 2)])
        assert len(operator._groups) == 2
        assert operator.process(Stable(t + 3)) == [Stable(t + 3)]
        assert len(operator._groups) == len(operator) == 0
    assert operator.process(Insert("ax", 29, 31)) == [Insert("ax", 29, 31)]


def test_a_new_group_has_seen_the_stables() -> None:
    """Of each input: else the stable of the output would fall behind."""
    operator = GroupApply(first, without_partner)
    assert operator.ports == 2
    assert operator.process(Stable(5)) == []
    assert operator.process(Stable(4), port=1) == [Stable(4)]
    operator.process(Insert("a1", 5, 9))
    operator.check()
    assert operator.process(Stable(6), port=1) == [Stable(5)]


def test_a_new_group_may_hold_the_stable() -> None:
    """One that has seen no events may still emit before what the others have closed."""

    class Late(MultisetOps):
        def _advance(self, changes: Changes) -> int:
            held, point = len(self), super()._advance(changes)
            return point if held or point == INFINITY else point - 5

    operator = GroupApply(first, lambda: Late("distinct"))
    assert operator.process_batch([Insert("a", 9, 99), Stable(8)]) == [
        Insert("a", 9, 99),
        Stable(3),
    ]


def test_inputs_may_have_keys_of_their_own_and_an_order() -> None:
    operator = GroupApply([second, first], without_partner, sources=["right", "left"])
    assert operator.process(Insert("1a", 1, 5)) == []
    assert operator.process(Insert("aa", 1, 9), port=1) == [Insert("aa", 5, 9)]
    with pytest.raises(ValueError, match="1 keys are given for 2 inputs"):
        GroupApply([first], without_partner)


def test_a_key_that_raises_changes_nothing() -> None:
    operator = GroupApply(first, lambda: MultisetOps("distinct"))
    operator.process(Insert("a", 1, 9))
    before = operator.snapshot()
    with pytest.raises(IndexError):
        operator.process_batch([Insert("a", 2, 20), Insert("b", 1, 9), Insert("", 1, 2)])
    assert operator.snapshot() == before
    assert operator.process(Insert("b", 1, 9)) == [Insert("b", 1, 9)]


def test_a_stateless_plan_keeps_no_groups() -> None:
    operator = GroupApply(first, lambda: Project(lambda p: p + "!"))
    batch: list[Element] = [Insert("a", 1, 2), Insert("b", 1, 2), Stable(1)]
    assert operator.process_batch(batch) == [Insert("a!", 1, 2), Insert("b!", 1, 2), Stable(1)]
    assert not operator._groups
    assert operator.process(Stable(INFINITY)) == [Stable(INFINITY)]


def test_state_of_another_plan_is_refused() -> None:
    operator = GroupApply(first, without_partner)
    operator.process(Insert("a1", 1, 9))
    with pytest.raises(StateError):
        GroupApply(first, lambda: MultisetOps("except")).restore(operator.snapshot())
