"""The benchmark of queries runs, and its queries do what it times."""

from collections.abc import Sequence

import pytest

from benchmarks import queries
from lmerge_service.elements import INFINITY, Stable
from lmerge_service.queries.physical import build
from tests.queries.promises import tdb_of


def test_each_measure_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.queries.gc.collect", lambda: 0)  # nothing is asserted of time
    reported: dict[str, Sequence[float]] = {}
    queries.run(1, 400, (10, 50), lambda name, _, values: reported.update({name: values}))
    names = " ".join(reported)
    for part in ("select", "windows", "join", "snapshot", "distinct", "except_all", "memory"):
        assert part in names
    assert all(min(values) > 0 for values in reported.values())


def test_its_stables_break_no_element_behind_them() -> None:
    network = build(queries.delays)
    given = queries.flight_batches(9_000)
    emitted = [e for source, batch in given for e in network.process_batch(source, batch)]
    assert tdb_of([e for _, batch in given for e in batch]).stable > 0
    emitted += network.process("flights", Stable(INFINITY))
    assert sum(event.payload[1] for event in tdb_of(emitted)) == 3 * 9_000  # type: ignore[index]
