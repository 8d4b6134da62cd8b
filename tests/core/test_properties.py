"""The operator's promises over drawn presentations, honest and lying (docs/semantics.md)."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from lmerge_service.core import Policy, lmerge, restore
from lmerge_service.core.breaches import BreachKind
from lmerge_service.elements import INFINITY, START, Adjust, Element, Insert, Stable
from lmerge_service.tdb import TDB, Event, reconstitute
from tests.core.harness import Watched
from tests.core.oracle import Oracle
from tests.strategies import (
    any_elements,
    interleavings,
    logical_streams,
    lying_presentations,
    presentations,
    seeded_presentations,
)

Steps = list[tuple[int, Element]]


@st.composite
def runs(draw: st.DrawFn) -> tuple[list[Event], int, Steps]:
    """(logical stream, number of inputs, interleaved steps) of honest presentations."""
    logical = draw(logical_streams())
    n = draw(st.integers(1, 4))
    made = draw(presentations(logical, n) | seeded_presentations(logical, n))
    return logical, n, draw(interleavings(made))


@st.composite
def lying_runs(draw: st.DrawFn) -> tuple[int, Steps]:
    n = draw(st.integers(1, 4))
    made = draw(
        lying_presentations(draw(logical_streams()), n)
        | st.lists(st.lists(any_elements(), max_size=15), min_size=n, max_size=n)
    )
    return n, draw(interleavings(made))


@given(runs())
def test_honest_inputs_are_merged_into_an_equivalent_output(
    run: tuple[list[Event], int, Steps],
) -> None:
    logical, n, steps = run
    watched = Watched([str(number) for number in range(n)])
    for number, element in steps:
        watched.process(str(number), element)
    assert watched.output == TDB(logical)
    assert watched.output.stable == INFINITY
    assert len(watched.merge) == 0, "no state after the end"


@given(lying_runs())
def test_whatever_the_inputs_do_the_output_is_a_legal_stream(run: tuple[int, Steps]) -> None:
    n, steps = run
    watched = Watched([str(number) for number in range(n)], consistent=False)
    for number, element in steps:
        watched.process(str(number), element)


@given(runs(), st.data())
def test_a_lying_input_beside_honest_ones_is_blamed_and_breaks_nothing(
    run: tuple[list[Event], int, Steps], data: st.DataObject
) -> None:
    """Lies without stables cannot lead, so the output is still what the honest inputs mean."""
    logical, n, steps = run
    lies = [e for e in data.draw(st.lists(any_elements(), max_size=8)) if type(e) is not Stable]
    merged = data.draw(interleavings([steps, [(n, lie) for lie in lies]]))
    merge = lmerge()
    for number in range(n + 1):
        merge.attach(str(number))
    output = TDB()
    for _, (number, element) in merged:
        for emitted in merge.process(str(number), element):
            output.apply(emitted)
        merge.check()
    assert output == TDB(logical)
    assert all(breach.input == str(n) for breach in merge.breaches())


@given(runs())
def test_batches_emit_what_single_elements_emit(run: tuple[list[Event], int, Steps]) -> None:
    _, n, steps = run
    one, many = lmerge(), lmerge()
    for number in range(n):
        one.attach(str(number))
        many.attach(str(number))
    singly = [emitted for number, element in steps for emitted in one.process(str(number), element)]
    in_batches: list[Element] = []
    for number, batch in _batches(steps):
        in_batches += many.process_batch(str(number), batch)
    assert in_batches == singly
    assert many.snapshot() == one.snapshot()


def _batches(steps: Steps) -> list[tuple[int, list[Element]]]:
    batches: list[tuple[int, list[Element]]] = []
    for number, element in steps:
        if batches and batches[-1][0] == number:
            batches[-1][1].append(element)
        else:
            batches.append((number, [element]))
    return batches


@given(lying_runs(), st.data())
def test_it_emits_what_the_simplest_form_emits(run: tuple[int, Steps], data: st.DataObject) -> None:
    """Lies and joining included; only the order of adjusts before a stable is free."""
    n, steps = run
    joining = {str(k): data.draw(st.sampled_from((START, START, 4, 11))) for k in range(n)}
    merge, oracle = lmerge(), Oracle(joining)
    for name, joining_at in joining.items():
        merge.attach(name, joining_at)
    for number, element in steps:
        emitted = merge.process(str(number), element)
        assert _in_order(emitted) == _in_order(oracle.process(str(number), element))


def test_a_wrong_old_end_does_not_revive_what_has_ended_for_the_input_itself() -> None:
    """The oracle once took it; c's own stable(6) had made 5 final."""
    steps: list[tuple[str, Element]] = [
        ("a", Insert("A", 4, 5)), ("a", Adjust("A", 4, 5, 28)), ("a", Stable(26)),
        ("b", Insert("A", 4, 27)), ("b", Stable(27)),
        ("c", Insert("A", 4, 5)), ("c", Stable(6)), ("c", Adjust("A", 4, 6, 28)),
    ]  # fmt: skip
    joining = dict.fromkeys("abc", START)
    merge, oracle = lmerge(), Oracle(joining)
    for name in joining:
        merge.attach(name)
    for name, element in steps:
        assert merge.process(name, element) == oracle.process(name, element)
    expected = [Adjust("A", 4, 28, 27), Stable(35)]
    assert merge.process("c", Stable(35)) == oracle.process("c", Stable(35)) == expected


@given(lying_runs(), st.data())
def test_a_restored_operator_goes_on_the_same(run: tuple[int, Steps], data: st.DataObject) -> None:
    n, steps = run
    cut = data.draw(st.integers(0, len(steps)))
    merge = lmerge()
    for number in range(n):
        merge.attach(str(number), joining_at=START if number < 2 else 10)
    for number, element in steps[:cut]:
        merge.process(str(number), element)
    merge.breaches()
    twin = restore(merge.snapshot())
    twin.check()
    assert twin.snapshot() == merge.snapshot()
    for number, element in steps[cut:]:
        assert twin.process(str(number), element) == merge.process(str(number), element)
        assert twin.breaches() == merge.breaches()
    assert twin.snapshot() == merge.snapshot()


@given(lying_runs(), st.data())
def test_an_operator_rebuilt_from_prefixes_goes_on_the_same(
    run: tuple[int, Steps], data: st.DataObject
) -> None:
    """Promise 7: lies included, and whatever the interleaving of the rebuild."""
    n, steps = run
    joining = [data.draw(st.sampled_from((START, START, 5, 12))) for _ in range(n)]
    cut = data.draw(st.integers(0, len(steps)))
    merge = lmerge()
    for number in range(n):
        merge.attach(str(number), joining[number])
    emitted = [o for number, element in steps[:cut] for o in merge.process(str(number), element)]

    rebuilt = lmerge()
    half = len(emitted) // 2
    rebuilt.replay_output(emitted[:half])
    rebuilt.replay_output(emitted[half:])
    for number in range(n):
        rebuilt.attach(str(number), joining[number])
    prefixes = [[e for k, e in steps[:cut] if k == number] for number in range(n)]
    for number, element in data.draw(interleavings(prefixes)):
        assert rebuilt.process(str(number), element) == [], "the output has all of it"
        rebuilt.check()

    assert rebuilt.max_stable == merge.max_stable
    for number, element in steps[cut:]:
        assert _in_order(rebuilt.process(str(number), element)) == _in_order(
            merge.process(str(number), element)
        )


def _in_order(emitted: Sequence[Element]) -> list[str]:
    """Adjusts of events with one vs come in order of arrival, which a rebuild cannot know."""
    return sorted(map(repr, emitted))


@given(runs(), st.data())
def test_a_late_joiner_and_early_leavers_lose_nothing(
    run: tuple[list[Event], int, Steps], data: st.DataObject
) -> None:
    """An input that joins at t sends only what ends at t or later; the others leave once it is
    joined."""
    logical, n, steps = run
    t = data.draw(st.integers(0, 35))
    late = [event for event in logical if event.ve >= t]
    (joiner,) = data.draw(presentations(late, 1))
    merge, output = lmerge(), TDB()
    for number in range(n):
        merge.attach(str(number))
    merge.attach("joiner", joining_at=t)
    gone = False
    for number, element in [
        (k, e) for _, (k, e) in data.draw(interleavings([steps, [(-1, e) for e in joiner]]))
    ]:
        name = "joiner" if number < 0 else str(number)
        if name in merge.inputs:
            for emitted in merge.process(name, element):
                output.apply(emitted)
        if merge.inputs["joiner"].joined and not gone and data.draw(st.booleans()):
            gone = True
            for other in range(n):
                merge.detach(str(other))
        merge.check()
    assert output == TDB(logical)
    assert merge.breaches() == []


@given(runs())
def test_the_same_calls_give_the_same_output(run: tuple[list[Event], int, Steps]) -> None:
    _, n, steps = run
    outputs = []
    for _ in range(2):
        merge = lmerge()
        for number in range(n):
            merge.attach(str(number))
        outputs.append([merge.process(str(number), element) for number, element in steps])
    assert outputs[0] == outputs[1]


@given(logical_streams(), st.integers(1, 4), st.data())
def test_partitions_of_an_input_may_interleave_in_any_way(
    logical: list[Event], width: int, data: st.DataObject
) -> None:
    """An input's stable is the minimum over its partitions; order holds within one only."""
    (whole,) = data.draw(presentations(logical, 1))
    parts: list[list[Element]] = [[] for _ in range(width)]
    for element in whole:
        if type(element) is Stable:
            for part in parts:
                part.append(element)
        else:
            parts["ABCD".index(element.payload) % width].append(element)  # type: ignore[union-attr]
    merge, output = lmerge(), TDB()
    merge.attach("a", partitions=width)
    for number, element in data.draw(interleavings(parts)):
        for emitted in merge.process("a", element, number):
            output.apply(emitted)
        merge.check()
    assert output == reconstitute(whole)
    assert output.stable == INFINITY
    assert merge.breaches() == []


def test_a_partition_without_elements_holds_its_input_back() -> None:
    merge = lmerge()
    merge.attach("a", partitions=2)
    assert merge.process("a", Stable(10), 0) == []
    assert merge.process("a", Stable(7), 1) == [Stable(7)]


def test_an_element_is_judged_by_its_own_partition() -> None:
    """Else the judgement, and so the rebuilt state, would depend on how partitions interleave."""
    merge = lmerge()
    merge.attach("a", partitions=2)
    merge.process("a", Stable(10), 0)
    assert merge.process("a", Insert("A", 5, 8), 0) == []
    assert merge.process("a", Insert("B", 5, 8), 1) == [Insert("B", 5, 8)]
    assert [b.kind for b in merge.breaches()] == [BreachKind.BROKE_OWN_STABLE]


def test_an_adjust_below_the_own_stable_is_ignored() -> None:
    merge = lmerge()
    merge.attach("a")
    merge.process_batch("a", [Insert("A", 5, 20), Stable(10)])
    assert merge.process("a", Adjust("A", 5, 20, 8)) == []
    assert merge.process("a", Stable(30)) == [Stable(30)]
    assert [b.kind for b in merge.breaches()] == [BreachKind.BROKE_OWN_STABLE]


@given(st.data())
def test_a_batch_is_its_elements_one_by_one(data: st.DataObject) -> None:
    """Also where the short way of a batch is not taken, as for a revision that is reflected."""
    case = data.draw(st.sampled_from(("R3", "R4")))
    adjust = data.draw(st.sampled_from(("lazy", "eager", "leader")))
    policy = Policy(adjust=adjust, stable=data.draw(st.sampled_from(("max", "quorum(2)"))))
    logical = data.draw(logical_streams(unique_keys=case != "R4"))
    streams = data.draw(lying_presentations(logical, 3))
    single, batched = lmerge(case, policy), lmerge(case, policy)
    for name in "abc":
        single.attach(name)
        batched.attach(name)
    rest = dict(zip("abc", streams, strict=True))
    while any(rest.values()):
        name = data.draw(st.sampled_from([each for each in "abc" if rest[each]]))
        count = data.draw(st.integers(1, 6))
        chunk, rest[name] = rest[name][:count], rest[name][count:]
        emitted = [each for element in chunk for each in single.process(name, element)]
        assert batched.process_batch(name, chunk) == emitted
        batched.check()
        assert batched.breaches() == single.breaches()
        assert batched.stats() == single.stats()
