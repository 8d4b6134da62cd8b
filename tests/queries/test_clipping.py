"""Clip: left events end where the next right event of their key starts."""

from collections.abc import Callable, Hashable
from random import Random
from typing import Any

import pytest

from lmerge_service.core.breaches import BreachKind
from lmerge_service.elements import INFINITY, Adjust, Element, Insert, Stable
from lmerge_service.queries.meaning import rows as meaning
from lmerge_service.queries.operators.clipping import Clip
from lmerge_service.tdb import TDB
from tests.queries.promises import Run, check_batches, check_promises
from tests.queries.streams import Feed, interleaved, legal_stream, without_revisions
from tests.seeds import seeds

Key = Callable[[Any], Hashable]
KEYS: dict[str, Key] = {"by key": lambda p: p and p[0], "all": lambda p: ()}


def drawn(rng: Random, length: int = 12) -> list[Feed]:
    payloads = rng.choice((("a1", "a2", "b1", None), ("a1", "a2")))
    return interleaved(rng, *(legal_stream(rng, payloads=payloads, length=length) for _ in "lr"))


def least(run: Run) -> int:
    return min(tdb.stable for tdb in run.inputs)


def retained(key: Key) -> Callable[[Run], int]:
    """Left events that end at m or behind it, and distinct right starts likewise."""

    def most(run: Run) -> int:
        point, (left, right) = least(run), run.inputs
        clipped = meaning.clip(left, right, key, key)
        starts = {(key(p), vs) for p, vs, _ in right if vs >= point and key(p) is not None}
        return sum(e.ve >= point and key(e.payload) is not None for e in clipped) + len(starts)

    return most


@pytest.mark.parametrize("keys", KEYS)
@seeds(60)
def test_promises(keys: str, seeds: range) -> None:
    key = KEYS[keys]

    def means(left: TDB, right: TDB) -> TDB:
        return meaning.clip(left, right, key, key)

    for seed in seeds:
        rng = Random(seed)
        feeds = drawn(rng)
        make = lambda: Clip(key, key)  # noqa: E731
        check_promises(make, means, feeds, stable=least, retained=retained(key))
        check_batches(make, means, feeds, rng)


@seeds(15)
def test_revisions_leave_no_trace(seeds: range) -> None:
    for seed in seeds:
        rng = Random(seed)
        streams = [legal_stream(rng, payloads=("a1", "a2", "b1")) for _ in range(2)]
        revised, final = (Run(lambda: Clip(lambda p: p[0], lambda p: p[0])) for _ in range(2))
        for port, element in interleaved(rng, *streams):
            revised.feed(element, port)
        for port, stream in enumerate(streams):
            final.feed_batch(without_revisions(stream), port)
        assert revised.output == final.output


def clip() -> Clip:
    return Clip(lambda p: p, lambda p: p)


def test_until_the_next_start() -> None:
    run = Run(clip)
    run.feed_batch([Insert("a", 1, 20), Insert("a", 5, 20), Insert("b", 1, 20)])
    assert run.feed(Insert("a", 5, 6), 1) == [Adjust("a", 1, 20, 5)]  # not the one that starts then
    assert run.feed(Insert("a", 9, INFINITY), 1) == [Adjust("a", 5, 20, 9)]
    assert run.feed(Insert("a", 7, 8), 1) == [Adjust("a", 5, 9, 7)]
    assert run.feed(Insert("a", 7, 9), 1) == []
    assert run.feed(Adjust("a", 7, 8, 7), 1) == []  # the other one is there still
    assert run.feed(Adjust("a", 7, 9, 12), 1) == []  # ends of right events don't matter
    assert run.feed(Adjust("a", 7, 12, 7), 1) == [Adjust("a", 5, 7, 9)]
    assert run.feed(Adjust("a", 1, 20, 1)) == [Adjust("a", 1, 5, 1)]
    assert run.feed(Adjust("a", 5, 20, 6)) == [Adjust("a", 5, 9, 6)]


def test_the_end_may_grow_from_the_stable_point() -> None:
    run = Run(clip)
    run.feed(Insert("a", 1, 6))
    for port in (0, 1):
        run.feed(Stable(6), port)
    assert run.feed(Adjust("a", 1, 6, 9)) == [Adjust("a", 1, 6, 9)]
    assert run.feed(Insert("a", 6, 7), 1) == [Adjust("a", 1, 9, 6)]
    assert run.feed(Adjust("a", 6, 7, 6), 1) == [Adjust("a", 1, 6, 9)]


def test_a_start_at_the_stable_point_may_go() -> None:
    """Even if the key has older ones to forget."""
    run = Run(clip)
    run.feed_batch([Insert("a", 2, 3), Insert("a", 6, 7)], 1)
    assert run.feed(Insert("a", 3, 9)) == [Insert("a", 3, 6)]
    for port in (0, 1):
        run.feed(Stable(6), port)
    assert len(run.operator) == 2
    assert run.feed(Adjust("a", 6, 7, 6), 1) == [Adjust("a", 3, 6, 9)]


def test_equal_events_are_clipped_alike() -> None:
    run = Run(clip)
    run.feed_batch([Insert("a", 1, 9), Insert("a", 1, 9)])
    assert run.feed(Insert("a", 5, 6), 1) == [Adjust("a", 1, 9, 5)] * 2
    assert run.feed(Adjust("a", 1, 9, 4)) == [Adjust("a", 1, 5, 4)]
    assert run.feed(Adjust("a", 5, 6, 5), 1) == [Adjust("a", 1, 5, 9)]


def test_what_was_clipped_for_good_stays() -> None:
    run = Run(clip)
    run.feed(Insert("a", 1, 20))
    run.feed(Insert("a", 5, 6), 1)
    for port in (0, 1):
        run.feed(Stable(7), port)
    assert len(run.operator) == 0
    assert run.feed(Adjust("a", 1, 20, 9)) == []
    assert run.feed(Adjust("a", 1, 9, INFINITY)) == []


def test_one_input_may_be_far_ahead() -> None:
    """Starts that the right input has closed clip left events that have not come yet."""
    run = Run(clip)
    run.feed_batch([Insert("a", t, t + 1) for t in (3, 6, 9)], 1)
    run.feed(Stable(INFINITY), 1)
    assert len(run.operator) == 3
    assert run.feed_batch([Insert("a", 4, 20), Stable(5)]) == [Insert("a", 4, 6), Stable(5)]
    assert len(run.operator) == 3
    assert run.feed_batch([Insert("a", 7, 20), Stable(8)]) == [Insert("a", 7, 9), Stable(8)]
    assert len(run.operator) == 2


def test_a_null_key_is_never_clipped() -> None:
    operator = Clip(lambda p: None, lambda p: None)
    assert operator.process(Insert("r", 3, 4), port=1) == []
    assert operator.process(Adjust("r", 3, 4, 3), port=1) == []
    left: list[Element] = [Insert("l", 1, 9), Adjust("l", 1, 9, 12)]
    assert [operator.process(element) for element in left] == [[each] for each in left]
    assert len(operator) == 0


def test_what_the_state_shows_to_be_illegal_is_refused() -> None:
    operator = clip()
    operator.process(Insert("a", 1, 9))
    operator.process(Insert("a", 4, 9), port=1)
    before = operator.snapshot()
    for port, wrong in (
        (0, Adjust("a", 1, 8, 3)),
        (0, Adjust("b", 1, 8, 3)),
        (1, Adjust("a", 3, 9, 3)),
        (1, Adjust("b", 4, 9, 4)),
    ):
        assert operator.process(wrong, port) == []
        assert operator.refused.pop() == (port, BreachKind.UNKNOWN_EVENT, wrong)
    assert operator.snapshot() == before


def test_what_user_code_raises_takes_the_batch_back() -> None:
    operator = Clip(lambda p: p[0], lambda p: p[0])
    operator.process(Insert("a1", 1, 9))
    operator.process(Insert("a2", 4, 9), port=1)
    before = operator.snapshot()
    batch: list[Element] = [Adjust("a1", 1, 9, 7), Adjust("a1", 1, 7, 1), Insert("b", 2, 3)]
    with pytest.raises(IndexError):
        operator.process_batch([*batch, Adjust("c", 1, 2, 3), Insert("", 1, 2)])
    operator.check()
    assert operator.refused == []
    assert operator.snapshot() == before


# Cost


def cost(operator: Clip, element: Element, port: int = 0) -> int:
    before = operator.touched
    operator.process(element, port)
    return operator.touched - before


def sized(n: int) -> list[int]:
    """What is looked at where n left events and right starts are alive and one thing changes."""
    operator = Clip(lambda p: p[0], lambda p: p[0])
    operator.process_batch([Insert(("a", k), 10 * k, INFINITY) for k in range(n)])
    operator.process_batch([Insert(("a",), 10 * k + 5, INFINITY) for k in range(n)], 1)
    operator.process_batch([Insert((k,), 10 * n, 20 * n) for k in range(n)])
    changes: list[tuple[int, Element]] = []
    for at in (23, 5 * n + 3, 10 * n - 7):
        changes += [(1, Insert(("a",), at, at + 5)), (1, Adjust(("a",), at, at + 5, at))]
        changes += [(0, Insert(("a", 0), at, INFINITY)), (0, Adjust(("a", 0), at, INFINITY, at))]
    changes += [(1, Stable(16)), (0, Stable(16)), (0, Stable(26)), (1, Stable(26))]
    return [cost(operator, element, port) for port, element in changes]


def test_what_is_looked_at_does_not_grow_with_what_is_alive() -> None:
    assert sized(60) == sized(240)
    assert max(sized(60)) < 8
