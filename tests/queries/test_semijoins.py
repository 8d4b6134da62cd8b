"""Semi-join and anti-join."""

from collections import Counter
from collections.abc import Callable, Hashable
from random import Random
from typing import Any

import pytest

from lmerge_service.core.breaches import BreachKind
from lmerge_service.elements import INFINITY, Adjust, Element, Insert, Stable
from lmerge_service.queries.meaning import semijoins as meaning
from lmerge_service.queries.operators.semijoins import AntiJoin, SemiJoin
from tests.queries.promises import (
    Make,
    Meaning,
    Run,
    check_batches,
    check_promises,
    snapshot_at,
    tdb_of,
)
from tests.queries.streams import Feed, interleaved, legal_stream, without_revisions
from tests.queries.vectors import run as run_whole
from tests.seeds import seeds

PAYLOADS = ("a1", "a2", "b1", None)
Key = Callable[[Any], Hashable]
Residual = Callable[[Any, Any], object] | None
KEYS: dict[str, tuple[Key, Residual]] = {
    "by key": (lambda p: p and p[0], None),
    "all": (lambda p: (), None),
    "residual": (lambda p: p and p[0], lambda left, right: left != right),
    "residual alone": (lambda p: (), lambda left, right: str(left) < str(right)),
}
KINDS: dict[str, tuple[Callable[..., SemiJoin], Meaning]] = {
    "semi": (SemiJoin, meaning.semi_join),
    "anti": (AntiJoin, meaning.anti_join),
}


def both(kind: str, keys: str) -> tuple[Make, Meaning]:
    operator, means = KINDS[kind]
    key, residual = KEYS[keys]
    return (
        lambda: operator(key, key, residual),
        lambda left, right: means(left, right, key, key, residual),
    )


def drawn(rng: Random, length: int = 9) -> list[Feed]:
    streams = [
        legal_stream(rng, payloads=rng.choice((PAYLOADS, PAYLOADS[:2])), length=length)
        for _ in range(2)
    ]
    return interleaved(rng, *streams)


def least(run: Run) -> int:
    return min(tdb.stable for tdb in run.inputs)


def live(run: Run, key: Key) -> int:
    return sum(e.ve >= least(run) and key(e.payload) is not None for t in run.inputs for e in t)


@pytest.mark.parametrize("keys", KEYS)
@pytest.mark.parametrize("kind", KINDS)
@seeds(40)
def test_promises(kind: str, keys: str, seeds: range) -> None:
    make, means = both(kind, keys)
    for seed in seeds:
        rng = Random(seed)
        feeds = drawn(rng)
        retained = lambda run: live(run, KEYS[keys][0])  # noqa: E731
        check_promises(make, means, feeds, stable=least, retained=retained)
        check_batches(make, means, feeds, rng)


def partner(keys: str, left: Any, right: Any) -> bool:
    key, residual = KEYS[keys]
    if key(left) is None or key(left) != key(right):
        return False
    return residual is None or bool(residual(left, right))


@pytest.mark.parametrize("keys", KEYS)
@seeds(6)
def test_every_snapshot_is_that_of_the_relational_operator(keys: str, seeds: range) -> None:
    for seed in seeds:
        rng = Random(seed)
        left, right = (tdb_of(legal_stream(rng, payloads=PAYLOADS)) for _ in range(2))
        semi, anti = (run_whole(both(kind, keys)[0](), left, right) for kind in KINDS)
        for t in range(24):
            partners = snapshot_at(right, t)
            found: Counter[Any] = Counter()
            for payload, times in snapshot_at(left, t).items():
                if any(partner(keys, payload, other) for other in partners):
                    found[payload] = times
            assert snapshot_at(semi, t) == found
            assert snapshot_at(anti, t) == snapshot_at(left, t) - found, "A is not A⋉B and A▷B"


@pytest.mark.parametrize("kind", KINDS)
@seeds(15)
def test_revisions_leave_no_trace(kind: str, seeds: range) -> None:
    for seed in seeds:
        rng = Random(seed)
        make, _ = both(kind, rng.choice(list(KEYS)))
        streams = [legal_stream(rng, payloads=PAYLOADS) for _ in range(2)]
        revised, final = Run(make), Run(make)
        for port, element in interleaved(rng, *streams):
            revised.feed(element, port)
        for port, stream in enumerate(streams):
            final.feed_batch(without_revisions(stream), port)
        assert revised.output == final.output


def test_a_fragment_that_is_open_keeps_its_start() -> None:
    """Of what began before m only the end moves, whatever has been forgotten."""
    alone = AntiJoin(lambda p: (), lambda p: ())
    alone.process(Insert("a", 1, 30))
    alone.process(Insert("x", 3, 5), port=1)
    for port in (0, 1):
        alone.process(Stable(10), port)
    assert len(alone) == 1
    assert alone.process(Insert("y", 12, 14), port=1) == [
        Adjust("a", 5, 30, 12),
        Insert("a", 14, 30),
    ]


def test_each_left_payload_has_its_own_pieces() -> None:
    """With a residual, what one has lost must not narrow what the next one loses."""
    semi = SemiJoin(lambda p: (), lambda p: (), lambda left, right: left != right)
    semi.process_batch([Insert("b", 0, 20), Insert("a", 0, 20)])
    semi.process_batch([Insert("a", 0, 6), Insert("c", 2, 12)], port=1)
    assert semi.process(Adjust("c", 2, 12, 2), port=1) == [
        Adjust("b", 0, 12, 6),
        Adjust("a", 2, 12, 2),
    ]


def test_equal_left_events_have_fragments_of_their_own() -> None:
    alone = AntiJoin(lambda p: (), lambda p: ())
    assert alone.process_batch([Insert("a", 1, 9)] * 2) == [Insert("a", 1, 9)] * 2
    assert alone.process(Insert("x", 5, 12), port=1) == [Adjust("a", 1, 9, 5)] * 2
    assert alone.process(Adjust("a", 1, 9, 3)) == [Adjust("a", 1, 5, 3)]
    assert alone.process(Adjust("x", 5, 12, 5), port=1) == [Adjust("a", 1, 5, 9)]


def test_a_null_key_has_no_partner() -> None:
    for null in (None, ("k", None)):
        semi, anti = (kind(lambda p: p[0], lambda p: p[0]) for kind in (SemiJoin, AntiJoin))
        for operator in (semi, anti):
            assert operator.process(Insert((null, "r"), 1, 9), port=1) == []
        left: list[Element] = [Insert((null, "l"), 1, 9), Adjust((null, "l"), 1, 9, 5)]
        assert [semi.process(element) for element in left] == [[], []]
        assert [anti.process(element) for element in left] == [[each] for each in left]
        assert len(semi) == len(anti) == 0


def test_what_the_state_shows_to_be_illegal_is_refused() -> None:
    for residual in (None, lambda left, right: True):
        semi = SemiJoin(lambda p: p, lambda p: p, residual)
        semi.process(Insert("a", 1, 9))
        semi.process(Insert("a", 2, 5), port=1)
        before = semi.snapshot()
        wrong = [Adjust("a", 1, 8, 3), Adjust("a", 2, 9, 3), Adjust("b", 1, 8, 3)]
        for port in (0, 1):
            for element in wrong:
                assert semi.process(element, port) == []
                assert semi.refused.pop() == (port, BreachKind.UNKNOWN_EVENT, element)
        assert semi.process(Adjust("a", 3, 5, 3), port=1) == []  # its end is there, its start not
        assert semi.refused.pop()[1] == BreachKind.UNKNOWN_EVENT
        assert semi.snapshot() == before


@seeds(20)
def test_what_user_code_raises_takes_the_batch_back(seeds: range) -> None:
    """The state is as it was: it goes on as if the batch had not come."""

    def residual(left: str, right: str) -> bool:
        if "bad" in (left, right):
            raise ZeroDivisionError
        return left != right

    for seed in seeds:
        rng = Random(seed)
        make: Make = lambda: SemiJoin(lambda p: (), lambda p: (), residual)  # noqa: E731
        feeds = [(0, Insert("x", 0, INFINITY)), (1, Insert("y", 0, INFINITY)), *drawn(rng)]
        operator, twin, port = make(), make(), rng.randrange(2)
        cut = rng.randrange(2, len(feeds) + 1)
        for at, (to, element) in enumerate(feeds):
            if at == cut:
                point = max(operator.stables[port], 0)
                batch = [element for each, element in feeds[cut:] if each == port]
                batch = [e for e in batch if type(e) is not Stable][:3]
                with pytest.raises(ZeroDivisionError):
                    operator.process_batch([*batch, Insert("bad", point, INFINITY)], port)
                operator.check()
                assert operator.refused == []
            emitted = operator.process(element, to)
            assert Counter(emitted) == Counter(twin.process(element, to))
            assert len(operator) == len(twin)


# Cost


def cost(operator: SemiJoin, element: Element, port: int = 0) -> int:
    before = operator.touched
    operator.process(element, port)
    return operator.touched - before


def sized(n: int) -> list[int]:
    """What is looked at where n events are alive and one thing changes."""
    key = lambda p: p[0]  # noqa: E731
    costs = []
    many = SemiJoin(key, key)  # keys
    for k in range(n):
        many.process(Insert((k,), k, k + n))
        many.process(Insert((k,), k, k + n), port=1)
    costs += [cost(many, Insert((0,), n, 2 * n), port=1), cost(many, Adjust((0,), 0, n, n + 1))]
    costs += [cost(many, Stable(n + 1), port=1), cost(many, Stable(n + 2))]
    for kind in (SemiJoin, AntiJoin):
        apart = kind(key, key)  # left events of one key, of which few overlap a change
        apart.process_batch([Insert((0, k), 10 * k, 10 * k + 15) for k in range(n)])
        for at in (20, 10 * n - 20):
            costs.append(cost(apart, Insert((0,), at, at + 5), port=1))
            costs.append(cost(apart, Adjust((0,), at, at + 5, at + 3), port=1))
            costs.append(cost(apart, Adjust((0,), at, at + 3, at), port=1))
    deep = SemiJoin(key, key)  # right events that overlap
    deep.process_batch([Insert((0, k), k, 2 * n + k) for k in range(n)], port=1)
    deep.process(Insert((0,), 0, 9 * n), port=1)
    costs += [cost(deep, Insert((0,), 0, n)), cost(deep, Adjust((0,), 0, 9 * n, n), port=1)]
    return costs


def test_what_is_looked_at_does_not_grow_with_what_is_alive() -> None:
    assert sized(60) == sized(240)
    assert max(sized(60)) < 12


def test_removing_a_long_event_follows_a_chain() -> None:
    """Not boundary by boundary: each step goes past all that has started."""
    semi = SemiJoin(lambda p: (), lambda p: ())
    semi.process_batch([Insert(k, k, k + 50) for k in range(400)], port=1)
    semi.process(Insert("long", 0, 449), port=1)
    assert cost(semi, Adjust("long", 0, 449, 0), port=1) < 449 / 50 + 5
