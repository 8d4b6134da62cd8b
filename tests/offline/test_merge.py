"""The merge of files: the interleavings, agreement with the operator, blame, memory."""

import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, count, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmerge_service.core import BreachKind, lmerge
from lmerge_service.elements import INFINITY, START, Adjust, Element, Insert, Stable
from lmerge_service.errors import ConfigurationError, ElementError
from lmerge_service.formats.ndjson import read_batches, read_elements
from lmerge_service.formats.wire import WireDecoder
from lmerge_service.offline.merge import (
    MergeReport,
    interleaving,
    merge_batches,
    merge_streams,
)
from lmerge_service.tdb import TDB, reconstitute
from tests.engines import by_both_engines
from tests.offline.streams import on_the_wire, read, write_all
from tests.strategies import (
    logical_streams,
    lying_presentations,
    presentations,
    seeded_presentations,
)

ORDERS = ("round-robin", "sequential", "random:0", "random:-7")
orders = st.sampled_from(ORDERS)


def order_of(name: str, *streams: str) -> str:
    """In which order the letters of the streams are taken; each stream is one letter repeated."""
    numbered: list[Any] = [enumerate(stream, 1) for stream in streams]
    return "".join(str(element) for _, _, element in interleaving(name)(numbered))


def merged(
    engine: str, order: str, *streams: list[Element], batch: int = 3
) -> tuple[list[Element], MergeReport]:
    """Of elements whose payloads are plain words. The native engine is given batches of so many."""
    emitted: list[Element] = []
    names = [f"input {number}" for number in range(len(streams))]
    if engine == "native":
        batches = [_batches(stream, batch) for stream in streams]
        report = merge_batches(names, batches, emitted.extend, order=interleaving(order))
        return [_as_it_was(each) for each in emitted], _with_words(report)
    numbered = [iter(list(enumerate(stream, 1))) for stream in streams]
    return emitted, merge_streams(names, numbered, emitted.append, order=interleaving(order))


def _batches(stream: list[Element], size: int) -> Iterator[Any]:
    from lmerge_engine import Batch

    for start in range(0, len(stream), size):
        yield Batch(map(on_the_wire, stream[start : start + size]))


def _as_it_was(element: Any) -> Any:
    """The element that `on_the_wire` has made this of."""
    if type(element) is Stable:
        return element
    return msgspec.structs.replace(element, payload=element.payload[1:-1].decode())


def _with_words(report: MergeReport) -> MergeReport:
    found = [
        replace(each, breach=replace(each.breach, element=_as_it_was(each.breach.element)))
        for each in report.found
    ]
    return replace(report, found=found)


def merged_files(engine: str, order: str, paths: list[str]) -> tuple[list[Element], MergeReport]:
    emitted: list[Element] = []
    if engine == "native":
        batches = [read_batches(path, WireDecoder(native=True)) for path in paths]
        return emitted, merge_batches(paths, batches, emitted.extend, order=interleaving(order))
    streams = [read_elements(path, WireDecoder()) for path in paths]
    return emitted, merge_streams(paths, streams, emitted.append, order=interleaving(order))


# Interleavings


def test_round_robin_takes_an_element_of_each_in_turn_until_it_has_no_more() -> None:
    assert order_of("round-robin", "aaa", "b", "cccc") == "abcacacc"


def test_sequential_takes_one_stream_after_the_other() -> None:
    assert order_of("sequential", "aaa", "b", "", "cc") == "aaabcc"


def test_random_is_the_same_for_the_same_seed_and_keeps_each_stream_in_order() -> None:
    streams = "abcdefgh", "ABCDEFGH", "12345678"
    one = order_of("random:5", *streams)
    assert one == "A12345aB6C7bDcEFdef8gGhH"
    assert one != order_of("random:6", *streams)
    for stream in streams:
        assert "".join(letter for letter in one if letter in stream) == stream


@pytest.mark.parametrize("name", ORDERS)
def test_every_element_is_taken_once_with_its_number_and_line(name: str) -> None:
    streams: list[Any] = [enumerate("aa", 1), enumerate("", 1), enumerate("bbb", 1)]
    taken: list[Any] = sorted(interleaving(name)(streams))
    assert taken == [(0, 1, "a"), (0, 2, "a"), (2, 1, "b"), (2, 2, "b"), (2, 3, "b")]


@pytest.mark.parametrize("name", ORDERS)
def test_no_stream_is_read_further_than_has_been_asked_for(name: str) -> None:
    endless: list[Any] = [zip(count(1), count()), zip(count(1), count())]
    assert len(list(islice(interleaving(name)(endless), 100))) == 100
    ahead = [next(stream)[0] for stream in endless]
    assert sum(ahead) - len(ahead) == 100


@pytest.mark.parametrize(
    "name",
    ["", "roundrobin", "round-robin:", "sequential:1", "random", "random:", "random:x", "random:²",
     "random:1.5", "random:--1", "random:1:2", "Random:1"],
)  # fmt: skip
def test_an_interleaving_that_is_none_is_refused_in_one_line(name: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        interleaving(name)
    expected = (
        f"no interleaving {name!r}: choose round-robin, random:SEED (an integer) or sequential"
    )
    assert str(refused.value) == expected


# What is emitted


@by_both_engines
@given(st.data(), orders)
def test_a_merge_emits_what_the_operator_emits(
    engine: str, data: st.DataObject, order: str
) -> None:
    logical = data.draw(logical_streams())
    streams = data.draw(presentations(logical, 3, closed=data.draw(st.booleans())))
    operator, expected = lmerge(), list[Element]()
    for number in range(3):
        operator.attach(str(number))
    for number, _, element in interleaving(order)([iter(list(enumerate(s))) for s in streams]):
        expected += operator.process(str(number), element)
    emitted, report = merged(engine, order, *streams)
    assert emitted == expected
    assert report.output.live_events == len(operator)
    assert report.output.stable == operator.max_stable


@by_both_engines
@given(st.data(), orders, st.booleans())
@settings(max_examples=60)
def test_files_merged_in_any_interleaving_mean_what_the_logical_stream_means(
    engine: str, data: st.DataObject, order: str, seeded: bool
) -> None:
    logical = data.draw(logical_streams())
    make = seeded_presentations if seeded else presentations
    streams = data.draw(make(logical, data.draw(st.integers(1, 3))))
    with TemporaryDirectory() as folder:
        emitted, report = merged_files(engine, order, write_all(folder, streams))
    assert reconstitute(emitted) == TDB(map(_wire_event, logical))
    assert report.output.complete
    assert report.output.live_events == 0
    assert report.breaches == 0
    assert not report.found


def _wire_event(event: tuple[Any, int, int]) -> tuple[Any, int, int]:
    return f'"{event[0]}"'.encode(), event[1], event[2]


@by_both_engines
@given(st.data(), orders)
@settings(max_examples=60)
def test_the_report_counts_what_was_read_and_written(
    engine: str, data: st.DataObject, order: str
) -> None:
    streams = data.draw(presentations(data.draw(logical_streams()), 2))
    emitted, report = merged(engine, order, *streams)

    def counts(elements: list[Element]) -> tuple[int, ...]:
        return tuple(sum(type(e) is kind for e in elements) for kind in (Insert, Adjust, Stable))

    for stream, each in zip(streams, report.inputs, strict=True):
        assert (each.inserts, each.adjusts, each.stables) == counts(stream)
    out = report.output
    assert (out.inserts, out.adjusts, out.stables) == counts(emitted)
    assert out.removals == sum(type(e) is Adjust and e.ve == e.vs for e in emitted)
    assert sum(each.delivered_first for each in report.inputs) == out.inserts
    assert report.elements == sum(map(len, streams))


@by_both_engines
def test_without_elements_the_output_stands_at_the_start(engine: str) -> None:
    emitted, report = merged(engine, "round-robin", [], [])
    assert emitted == []
    assert (report.output.stable, report.output.complete, report.elements) == (START, False, 0)


@by_both_engines
def test_a_bad_line_ends_the_merge_with_its_file_and_line(engine: str, tmp_path: Path) -> None:
    paths = write_all(tmp_path, [[Insert("A", 6, 20), Stable(7)], [Insert("A", 6, 20)]])
    with Path(paths[1]).open("a") as file:
        file.write("{}\n")
    with pytest.raises(ElementError, match=rf"^{paths[1]}:2: "):
        merged_files(engine, "sequential", paths)


def test_a_name_given_twice_is_distinguished_in_the_report() -> None:
    streams: list[Iterator[tuple[int, Element]]] = [iter([(1, Stable(n))]) for n in range(4)]
    report = merge_streams(["a", "a", "a (2)", "a"], streams, lambda _: None)
    assert [each.name for each in report.inputs] == ["a", "a (2)", "a (2) (2)", "a (3)"]


# Blame


@by_both_engines
def test_a_breach_is_named_with_its_file_and_line(engine: str) -> None:
    one: list[Element] = [Insert("A", 2, 20), Stable(10)]
    two: list[Element] = [Insert("B", 3, 20), Insert("B", 3, 9), Stable(15), Stable(12)]
    _, report = merged(engine, "sequential", one, two)
    assert [(each.where, each.breach.kind) for each in report.found] == [
        ("input 1:3", BreachKind.HALF_FROZEN_MISSING),
        ("input 1:4", BreachKind.STABLE_REGRESSION),
    ]
    assert report.inputs[0].breaches == {}
    assert report.inputs[1].breaches == {"half_frozen_missing": 1, "stable_regression": 1}
    assert report.breaches == 2
    assert report.inputs[1].late == 2


@by_both_engines
@given(st.data(), orders)
def test_lying_inputs_give_a_legal_output_and_each_breach_its_line(
    engine: str, data: st.DataObject, order: str
) -> None:
    streams = data.draw(lying_presentations(data.draw(logical_streams()), 3))
    emitted, report = merged(engine, order, *streams)
    reconstitute(emitted)
    assert report.breaches == len(report.found)
    for each in report.found:
        name, _, line = each.where.rpartition(":")
        number = int(name.removeprefix("input "))
        assert each.breach.input == name
        assert each.breach.element == streams[number][int(line) - 1]


@by_both_engines
def test_of_many_breaches_the_first_are_kept_and_all_are_counted(engine: str) -> None:
    twice: list[Element] = [Insert("A", 1, 2)] * 251
    _, report = merged(engine, "sequential", twice)
    assert [each.where for each in report.found] == [f"input 0:{line}" for line in range(2, 102)]
    assert report.breaches == 250


@by_both_engines
def test_breaches_are_counted_beyond_what_the_operator_keeps_of_one_element(engine: str) -> None:
    many: list[Element] = [*(Insert(f"{n}", 1, 9) for n in range(1500)), Stable(2)]
    _, report = merged(engine, "sequential", many, [Stable(5)])
    assert report.breaches == report.inputs[1].breaches["half_frozen_missing"] == 1500
    assert len(report.found) == 100


# Cost


def test_memory_does_not_grow_with_the_files(tmp_path: Path) -> None:
    small, large = (_peak(tmp_path, events) for events in (1_500, 9_000))
    assert large < 1.2 * small


def _peak(folder: Path, events: int) -> int:
    """The most bytes that a merge of two inputs holds at once."""
    paths = write_all(folder, [_steady(events, 5), _steady(events, 0)])
    tracemalloc.start()
    try:
        written = 0

        def write(_: Element) -> None:
            nonlocal written
            written += 1

        streams = [read_elements(path, WireDecoder()) for path in paths]
        report = merge_streams(paths, streams, write)
        assert written > events
        assert report.output.complete
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def _steady(events: int, provisional: int) -> Iterator[Element]:
    """One event a tick, of few payloads and short lives."""
    for n in range(events):
        yield Insert(f"{n % 50}", n, n + 20 - provisional)
        if provisional:
            yield Adjust(f"{n % 50}", n, n + 20 - provisional, n + 20)
        if n % 10 == 0:
            yield Stable(n - 5)
    yield Stable(INFINITY)


def test_what_is_written_and_read_again_is_the_same(tmp_path: Path) -> None:
    """The helper of these tests keeps its promise."""
    elements: list[Element] = [Insert("A", 6, INFINITY), Adjust("A", 6, INFINITY, 6), Stable(7)]
    (path,) = write_all(tmp_path, [elements])
    assert read(path) == list(map(on_the_wire, chain(elements)))
