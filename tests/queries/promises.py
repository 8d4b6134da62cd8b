"""The promises Q1 to Q10 of `queries.operators.protocol`, checked after every element."""

from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from lmerge_service.elements import INFINITY, START, Adjust, Element, Insert, Stable
from lmerge_service.queries.operators.protocol import Operator
from lmerge_service.tdb import TDB
from tests.queries.streams import Feed

Make = Callable[[], Operator]
Meaning = Callable[..., TDB]


class Run:
    """An operator, what has gone into it and what has come out of it."""

    def __init__(self, make: Make) -> None:
        self.operator = make()
        self.inputs = [TDB() for _ in range(self.operator.ports)]
        self.output = TDB()

    def feed(self, element: Element, port: int = 0) -> list[Element]:
        return self.feed_batch([element], port)

    def feed_batch(self, elements: Sequence[Element], port: int = 0) -> list[Element]:
        """Hands a batch over; what comes out must be legal (Q2) and the net change (Q7)."""
        for element in elements:
            self.inputs[port].apply(element)
        before = TDB(self.output, self.output.stable)
        emitted = self.operator.process_batch(elements, port)
        for element in emitted:
            self.output.apply(element)
        not_chatty(before, self.output, emitted)
        assert self.output.stable == self.operator.stable, "Q4: it emits another stable"
        assert not self.operator.refused, self.operator.refused
        self.operator.check()
        return emitted


def check_promises(
    make: Make,
    meaning: Meaning,
    feeds: Sequence[Feed],
    *,
    on_update: bool = True,
    retained: Callable[[Run], int] | None = None,
    stable: Callable[[Run], int] | None = None,
) -> Run:
    """Feeds an operator, element by element, and checks its promises after each.

    `on_update`: it emits on every update, so its output equals its meaning after every element
    (Q5). `retained` is the most that the retention rule lets it hold (Q6), `stable` the value of
    its stable rule (Q4), both as functions of the run.
    """
    run, twin, restored = Run(make), Run(make), None
    restore_at = Random(len(feeds)).randrange(len(feeds) + 1)
    for position, (port, element) in enumerate(feeds):
        if position == restore_at:
            restored = make()
            restored.restore(run.operator.snapshot())
        emitted = run.feed(element, port)
        assert twin.feed(element, port) == emitted, "Q8: equal calls, other elements"
        if restored is not None:
            assert restored.process(element, port) == emitted, "Q9: restored, it goes on otherwise"
        wanted = meaning(*run.inputs)
        if on_update:
            assert run.output == wanted, f"Q5: {run.output} instead of {wanted}"
        point = run.operator.stable
        assert run.output.before(point) == wanted.before(point), f"Q3: {run.output}, {wanted}"
        if stable is not None:
            assert point == max(stable(run), START), f"Q4: {point} instead of {stable(run)}"
        if retained is not None and type(element) is Stable:
            most = retained(run)
            assert len(run.operator) <= most, f"Q6: {len(run.operator)} held, {most} allowed"
    if all(tdb.stable == INFINITY for tdb in run.inputs):
        assert run.operator.stable == INFINITY, "Q4: all inputs are closed, the output is not"
        assert len(run.operator) == 0, "Q6: state is left behind the end"
        assert run.output == meaning(*run.inputs), f"Q1: {run.output}, {meaning(*run.inputs)}"
    return run


def check_batches(make: Make, meaning: Meaning, feeds: Sequence[Feed], rng: Random) -> None:
    """However the elements are cut into batches, the final TDB is the meaning's (Q1 to Q3, Q7)."""
    run, left = Run(make), list(feeds)
    while left:
        port, size = left[0][0], rng.choice((1, 2, 3, 5))
        batch: list[Element] = []
        while left and left[0][0] == port and len(batch) < size:
            batch.append(left.pop(0)[1])
        run.feed_batch(batch, port)
        point, wanted = run.operator.stable, meaning(*run.inputs)
        assert run.output.before(point) == wanted.before(point), f"Q3: {run.output}, {wanted}"
    if all(tdb.stable == INFINITY for tdb in run.inputs):
        assert run.output == meaning(*run.inputs), f"Q1: {run.output}, {meaning(*run.inputs)}"
        assert len(run.operator) == 0, "Q6: state is left behind the end"


def not_chatty(before: TDB, after: TDB, emitted: Sequence[Element]) -> None:
    """Q7: no empty adjust, no more elements than the change needs, at most one stable, last."""
    data = [element for element in emitted if type(element) is not Stable]
    assert emitted[: len(data)] == data, "a stable is not last"
    assert len(emitted) <= len(data) + 1, "more than one stable"
    for element in data:
        assert not (isinstance(element, Adjust) and element.vold == element.ve), element
    ends: dict[tuple[Any, int], Counter[int]] = {}
    for sign, tdb in ((-1, before), (1, after)):
        for payload, vs, ve in tdb:
            ends.setdefault((payload, vs), Counter())[ve] += sign
    fewest = sum(
        max(sum(n for n in change.values() if n > 0), -sum(n for n in change.values() if n < 0))
        for change in ends.values()
    )
    assert len(data) == fewest, f"Q7: {len(data)} elements where {fewest} would do: {emitted}"


def snapshot_at(tdb: TDB, t: int) -> Counter[Any]:
    """The payloads that are valid at t, as often as they are."""
    return Counter(payload for payload, vs, ve in tdb if vs <= t < ve)


def tdb_of(elements: Sequence[Element]) -> TDB:
    """The TDB of a legal stream."""
    tdb = TDB()
    for element in elements:
        tdb.apply(element)
    return tdb


def inserts_only(elements: Sequence[Element]) -> bool:
    return not any(isinstance(element, Adjust) for element in elements)


def in_order(elements: Sequence[Element]) -> bool:
    starts = [element.vs for element in elements if isinstance(element, Insert)]
    return starts == sorted(starts)
