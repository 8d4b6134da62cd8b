"""The native LMR3 beside the one that defines it: equal elements, breaches, counts, snapshots,
whatever inputs send, and either goes on from the other's state."""

from collections.abc import Callable, Iterable
from random import Random
from typing import Any

import pytest

from lmerge_service.core import LMerge, Policy, lmerge
from lmerge_service.core.factory import restore
from lmerge_service.core.lmr3 import LMR3
from lmerge_service.core.native import NativeLMR3
from lmerge_service.elements import INFINITY, Adjust, Element, Insert, Stable
from lmerge_service.errors import StateError
from tests.engine.streams import NAMES, Script
from tests.seeds import seeds


class Pair:
    """Both operators, which must not differ in anything."""

    def __init__(self, policy: Policy) -> None:
        self.python: LMerge = LMR3(policy)
        self.native: LMerge = lmerge("R3", policy, engine="native")
        assert isinstance(self.native, NativeLMR3)
        self.emitted: list[Element] = []

    def both(self, act: Callable[[LMerge], Any]) -> tuple[Any, Any]:
        return act(self.python), act(self.native)

    def same(self, one: Iterable[Element], other: Iterable[Element]) -> None:
        python, native = self.python, self.native
        emitted = list(one)
        assert list(other) == emitted
        assert native.breaches() == python.breaches()
        assert native.stats() == python.stats()
        assert _inputs(native) == _inputs(python)
        assert native.max_stable == python.max_stable
        assert len(native) == len(python)
        native.check()
        self.emitted += emitted

    def exchange(self, rng: Random) -> None:
        """Either may go on from the other's snapshot, which is its own."""
        one, other = self.python.snapshot(), self.native.snapshot()
        assert one == other
        assert sorted(map(repr, self.native.live_output() or ())) == sorted(
            map(repr, self.python.live_output() or ())
        )
        assert _versions(self.native) == _versions(self.python)
        for payload, vs, *_ in self.python.versions() or ():
            ends = self.python.output_ends(payload, vs)
            assert self.native.output_ends(payload, vs) == ends
        assert self.native.output_ends(b"nobody", 1) == []
        if rng.random() < 0.5:
            self.python = restore(other)
        if rng.random() < 0.7:
            self.native = restore(one, "native")


def _inputs(merge: LMerge) -> dict[str, Any]:
    return {
        name: (
            *(each.incarnation, each.joined, each.joining_at, each.gap_until, each.stables),
            *(each.inserts, each.adjusts, each.stables_in, each.first, each.late, each.breaches),
        )
        for name, each in merge.inputs.items()
    }


def _versions(merge: LMerge) -> list[Any]:
    return [
        (payload, vs, list(outs), sorted((name, list(ends)) for name, ends in inputs))
        for payload, vs, outs, inputs in merge.versions() or ()
    ]


def _step(pair: Pair, script: Script) -> None:
    rng, inputs = script.rng, pair.python.inputs
    draw = rng.random()
    if draw < 0.12 or not inputs:
        name, joining, partitions = rng.choice(NAMES), script.joining(), rng.choice((1, 1, 2))
        accepted = rng.random() < 0.1
        pair.both(lambda m: m.attach(name, joining, partitions, accepted_gap=accepted))
        pair.same((), ())
    elif draw < 0.16:
        name = rng.choice(list(inputs))
        pair.same(*pair.both(lambda m: m.detach(name)))
    elif draw < 0.19 and pair.python.gap:
        (one, first), (other, second) = pair.both(lambda m: m.accept_gap())
        assert one == other
        pair.same(first, second)
    elif draw < 0.27:
        pair.exchange(rng)
    else:
        name = rng.choice(list(inputs))
        partition, elements = rng.randrange(len(inputs[name].stables)), script.elements()
        pair.same(*pair.both(lambda m: m.process_batch(name, elements, partition)))


@seeds(250)
def test_whatever_happens_both_are_equal(seeds: range) -> None:
    for seed in seeds:
        rng = Random(seed)
        pair, script = Pair(rng.choice((Policy(), Policy(stable="lag(2)")))), Script(rng)
        for _ in range(rng.randrange(1, 25)):
            _step(pair, script)
        _follow(pair, script)


def _follow(before: Pair, script: Script) -> None:
    """Operators that follow from the beginning, by the output, and then by inputs."""
    rng, pair = script.rng, Pair(before.python.policy)
    output = before.emitted[: rng.randrange(len(before.emitted) + 1)]
    faults = pair.both(lambda merge: _fault_of(merge, output))
    assert faults[0] == faults[1]
    if faults[0] is not None:
        return
    for name in NAMES[:2]:
        pair.both(lambda merge, name=name: merge.attach(name))  # type: ignore[misc]
    for _ in range(4):
        name, elements = rng.choice(NAMES[:2]), script.elements()
        python, native = pair.python, pair.native
        pair.same(python.replay_input(name, elements), native.replay_input(name, elements))
        pair.same(python.process_batch(name, elements), native.process_batch(name, elements))
    pair.exchange(rng)


def _fault_of(merge: LMerge, output: list[Element]) -> str | None:
    try:
        merge.replay_output(output)
    except StateError as error:
        return str(error)
    return None


def test_single_elements_are_taken_as_well() -> None:
    pair = Pair(Policy())
    pair.both(lambda merge: merge.attach("x"))
    for element in (Insert(b"1", 2, 9), Adjust(b"1", 2, 9, 5), Stable(4), Stable(INFINITY)):
        pair.same(*pair.both(lambda merge, e=element: merge.process("x", e)))  # type: ignore[misc]


def test_inputs_come_and_go_more_often_than_a_word_has_bits() -> None:
    pair = Pair(Policy())
    for number in range(200):
        name = f"input-{number}"
        pair.both(lambda merge, name=name: merge.attach(name))  # type: ignore[misc]
        elements = [Insert(b"1", number, number + 300), Stable(number)]
        pair.same(*pair.both(lambda m, n=name, e=elements: m.process_batch(n, e)))  # type: ignore[misc]
        if number % 3:
            pair.both(lambda merge, name=name: merge.detach(name))  # type: ignore[misc]
    pair.exchange(Random(1))


def test_a_stable_touches_what_it_concerns_alone() -> None:
    """Many half-frozen events, and a stable that changes none of them."""
    touched = []
    for live in (100, 10_000):
        merge = NativeLMR3()
        merge.attach("x")
        merge.process_batch("x", [Insert(b"%d" % n, 0, 1_000) for n in range(live)])
        merge.process_batch("x", [Stable(1)])
        before = merge._index.touched
        for t in range(2, 52):
            merge.process_batch("x", [Stable(t)])
        touched.append(merge._index.touched - before)
    assert touched == [0, 0]


def test_queues_do_not_grow_with_what_is_revised() -> None:
    """`check` looks at their length."""
    merge = NativeLMR3()
    merge.attach("x")
    merge.process_batch("x", [Insert(b"1", 0, 1_000), Insert(b"2", 0, 1_000), Stable(1)])
    for end in range(1_000, 2_000):
        merge.process_batch("x", [Adjust(b"1", 0, end, end + 1), Insert(b"3", 50, 60)])
        merge.process_batch("x", [Adjust(b"3", 50, 60, 50)])
        merge.check()


def test_stables_that_only_move_the_output_are_not_pythons_matter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A regression, one by which an input joins, and one of an input behind which another leads
    are; the output, breaches and counts are the same."""
    asked: list[int] = []
    stable = NativeLMR3._stable

    def noting(merge: NativeLMR3, source: Any, element: Stable, *rest: Any) -> None:
        asked.append(element.vc)
        stable(merge, source, element, *rest)

    monkeypatch.setattr(NativeLMR3, "_stable", noting)
    pair = Pair(Policy(stable="lag(10)"))
    pair.both(lambda merge: merge.attach("a", partitions=2))
    pair.both(lambda merge: merge.attach("b", joining_at=50))
    events = [Insert(b"%d" % n, n, n + 25) for n in range(100)]

    def take(name: str, elements: list[Element], partition: int = 0) -> None:
        pair.same(*pair.both(lambda merge: merge.process_batch(name, list(elements), partition)))

    take("a", [*events[:40], Stable(5), Stable(5), Adjust(b"30", 30, 55, 57), Stable(30)])
    take("a", [Stable(20), *events[40:80], Stable(40)], 1)
    assert asked == []
    take("a", [Stable(39)], 1)
    assert asked == [39], "it goes back"
    take("a", [Stable(70), Stable(75)])
    assert asked == [39]
    take("a", [Stable(80), Stable(90)], 1)
    assert asked == [39, 80], "b joins by it"
    take("b", [*events[:20], Stable(90), events[0], *events[60:], Stable(99)])
    assert asked == [39, 80], "what it lacks is blamed behind the stable"
    pair.both(lambda merge: merge.detach("b"))
    take("a", [Stable(INFINITY)])
    take("a", [Stable(INFINITY)], 1)
    assert asked == [39, 80]
    assert pair.emitted[-1] == Stable(INFINITY)
    assert sum(type(each) is Stable for each in pair.emitted) == pair.native.stats().stables
