"""User modules: what is declared, what is refused, what they are called with, what they may do."""

from random import Random
from typing import Any

import pytest

from lmerge_service.elements import Adjust, Insert
from lmerge_service.errors import ConfigurationError, ModuleError, StateError
from lmerge_service.queries.module_aggregates import ModuleAggregate
from lmerge_service.queries.module_library import (
    average,
    median,
    percentile,
    time_weighted_average,
)
from lmerge_service.queries.modules import Application, Module, module, uda, udf, udo
from lmerge_service.queries.operators.grids import Grid, GridWindows
from lmerge_service.queries.window_policies import Row, Window

LIBRARY = "lmerge_service.queries.module_library"
HERE = Window(0, 10)


def value(use: Application, *values: Any, window: Window = HERE) -> Any:
    state = use.state_of(window, [(v, 0, 10) for v in values])
    (row,) = use.results(None, window, state)
    return row.payload


@udo("3", reads=["x"])
def seen(values: Any) -> Any:
    return [tuple(values)]


# --- registration ---------------------------------------------------------------------------------


def test_modules_are_found_by_their_importable_names() -> None:
    for each in (average, median, percentile, time_weighted_average, seen):
        assert isinstance(each, Module)
        assert module(each.name) is each
    assert average.name == f"{LIBRARY}:average"
    assert module(f"{__name__}:seen", version="3") is seen
    assert seen.fingerprint == (f"{__name__}:seen", "3")
    assert percentile.bind(90).fingerprint == (f"{LIBRARY}:percentile", "1", 90)


@pytest.mark.parametrize(
    ("name", "version", "message"),
    [
        ("no_such_package:x", None, "no module 'no_such_package:x'"),
        (f"{LIBRARY}:nothing", None, "has no attribute 'nothing'"),
        (LIBRARY, None, "no module"),
        (f"{LIBRARY}:Sequence", None, "decorate it with uda or udo"),
        (f"{LIBRARY}:median", "2", "is of version '1', the plan wants '2'"),
    ],
)
def test_what_is_no_module_is_refused(name: str, version: str | None, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        module(name, version)


def test_declarations_that_contradict_each_other_are_refused() -> None:
    class Incremental:
        pass

    def made(values: Any) -> Any:
        return values

    for decorate, of, message in (
        (udo("1", stamped=True), made, "stamped, but not time-sensitive"),
        (udo("1", time_sensitive=True, time_bound=True), made, "time-bound, but not stamped"),
        (uda("1", distinct_only=True), Incremental, "distinct only, but incremental"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            decorate(of)
    with pytest.raises(ConfigurationError, match="one value has no lifetime"):
        Module("x:y", "1", False, made, time_sensitive=True, stamped=True)


def test_policies_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="no clipping 'both', only 'none', 'left'"):
        Application(median, clipping="both")
    for each in (median, time_weighted_average):
        with pytest.raises(ConfigurationError, match="only 'align'"):
            Application(each, timestamping="clip")
    with pytest.raises(ConfigurationError, match="sees windows"):
        ModuleAggregate(time_weighted_average)


# --- what they are called with --------------------------------------------------------------------


def test_values_come_in_canonical_order_and_as_often_as_they_are() -> None:
    assert value(Application(seen), 3, "a", None, 1, 3, 2.5) == (None, 1, 2.5, 3, 3, "a")

    @udo("1", distinct_only=True)
    def distinct(values: Any) -> Any:
        return [tuple(values)]

    assert value(Application(distinct), 3, 1, 3) == (1, 3)


def test_lifetimes_come_behind_values_in_canonical_order() -> None:
    @udo("1", time_sensitive=True)
    def timed(window: Any, events: Any) -> Any:
        return [(window.vs, *events)]

    use = Application(timed, clipping="right")
    state = use.state_of(HERE, [(2, 0, 5), (1, 6, 12), (1, 3, 4), (1, 3, 9)])
    assert use.results("g", HERE, state) == (
        Row(("g", (0, (1, 3, 4), (1, 3, 9), (1, 6, 10), (2, 0, 5))), 0, 10),
    )


def test_a_module_takes_its_parameters_behind_its_values_or_when_it_is_made() -> None:
    class Scaled:
        def __init__(self, by: int) -> None:
            self.by = by

        def empty(self) -> int:
            return 0

        def add(self, state: int, value: int) -> int:
            return state + value * self.by

        def remove(self, state: int, value: int) -> int:
            return state - value * self.by

        def compute(self, state: int) -> int:
            return state

    assert value(Application(uda("1")(Scaled).bind(10)), 1, 2) == 30
    assert value(Application(percentile.bind(50)), 5, 1, 9) == 5


# --- what they may not do -------------------------------------------------------------------------


def test_an_error_is_one_line_with_the_module_the_window_and_the_group() -> None:
    @uda("7")
    def broken(values: Any) -> Any:
        raise KeyError("no\nsuch key")

    use = Application(broken, value=lambda payload: payload[1])
    windows = GridWindows(Grid(10), use, key=lambda payload: payload[0])
    with pytest.raises(ModuleError) as caught:
        windows.process(Insert(("JFK", 3), 12, 13))
    assert str(caught.value) == (
        f"the module {broken.name} (version 7) raised KeyError('no\\nsuch key') "
        "for the window [10, 20) of group 'JFK'"
    )
    assert caught.value.exit_code == 4
    assert len(windows) == 0


@pytest.mark.parametrize(
    "row", [("a", 3, 3), ("a", 1.0, 3), ("a", 1), (["a"], 1, 3), ("a", 1, 2**63)]
)
def test_a_row_that_is_none_is_an_error(row: Any) -> None:
    @udo("1", time_sensitive=True, stamped=True)
    def wrong(window: Any, events: Any) -> Any:
        return [row]

    use = Application(wrong, timestamping="unchanged")
    with pytest.raises(ModuleError, match=r"raised (Value|Type)Error"):
        use.results(None, HERE, use.state_of(HERE, [(1, 0, 1)]))


def test_a_row_before_its_window_is_an_error_unless_it_is_clipped() -> None:
    @udo("1", time_sensitive=True, stamped=True)
    def early(window: Any, events: Any) -> Any:
        return [("a", window.vs - 2, window.vs + 1), ("b", window.ve, window.ve + 1)]

    results = {}
    for policy in ("align", "clip"):
        use = Application(early, timestamping=policy)
        results[policy] = use.results(None, HERE, use.state_of(HERE, [(1, 0, 1)]))
    assert results == {
        "align": (Row("a", 0, 10), Row("b", 0, 10)),
        "clip": (Row("a", 0, 1),),
    }
    use = Application(early, timestamping="unchanged")
    with pytest.raises(ModuleError, match="begins before its window"):
        use.results(None, HERE, use.state_of(HERE, [(1, 0, 1)]))


def test_one_in_64_results_is_computed_twice_and_compared() -> None:
    calls = []

    @uda("1")
    def counting(values: Any) -> Any:
        calls.append(values)
        return len(calls)

    use = Application(counting)
    state = use.state_of(HERE, [(1, 0, 1)])
    for _ in range(63):
        use.results(None, HERE, state)
    assert len(calls) == 63
    with pytest.raises(ModuleError, match=r"returned \[64\] and \[65\] for the window \[0, 10\)"):
        use.results(None, HERE, state)


def test_a_function_is_null_of_null_and_its_errors_are_one_line() -> None:
    @udf("1")
    def divided(one: int, two: int) -> float:
        return one / two

    @udf("1", null_safe=True)
    def known(one: Any) -> bool:
        return one is not None

    assert (divided(6, 3), divided(None, 3), known(None)) == (2, None, False)
    with pytest.raises(ModuleError, match=r"divided\(1, 0\) raised ZeroDivisionError"):
        divided(1, 0)
    draws = iter(range(100))

    @udf("1")
    def drawn(_: int) -> int:
        return next(draws)

    for _ in range(63):
        drawn(1)
    with pytest.raises(ModuleError, match=r"drawn\(1\) returned 63 and 64"):
        drawn(1)


def test_states_that_would_not_come_back_are_not_saved() -> None:
    class Held:
        def empty(self) -> Any:
            return frozenset()

        def add(self, state: Any, value: Any) -> Any:
            return state | {value}

        def remove(self, state: Any, value: Any) -> Any:
            return state - {value}

        def compute(self, state: Any) -> Any:
            return len(state)

    windows = GridWindows(Grid(10), Application(uda("1")(Held)))
    windows.process(Insert(1, 2, 3))
    with pytest.raises(StateError, match="frozenset"):
        windows.snapshot()


# --- the library ----------------------------------------------------------------------------------


def test_an_incremental_module_is_its_non_incremental_form() -> None:
    """Whatever comes and goes, the average is that of what is there; of floats, too."""
    plain = uda("1")(lambda values: sum(values) / len(values))
    for seed in range(50):
        rng = Random(seed)
        values = [rng.choice((rng.randrange(-9, 9), rng.randrange(16) / 8)) for _ in range(8)]
        incremental, whole = (
            GridWindows(Grid(100), Application(each)) for each in (average, plain)
        )
        for at, each in enumerate(values):
            one, two = (o.process(Insert(each, at, at + 1)) for o in (incremental, whole))
            assert one == two
            if rng.random() < 0.3 and at:
                gone = Adjust(each, at, at + 1, at)
                assert incremental.process(gone) == whole.process(gone)
                assert incremental.process(Insert(each, at, at + 1)) == whole.process(
                    Insert(each, at, at + 1)
                )


def test_sums_of_floats_depend_on_no_order_and_are_saved_exactly() -> None:
    values = [1e100, 1.0, -1e100, 2.0, 0.1]
    for seed in range(10):
        shuffled = Random(seed).sample(values, len(values))
        assert value(Application(average), *shuffled) == (3 + 0.1) / 5
        windows = GridWindows(Grid(10), Application(average))
        windows.process_batch([Insert(each, 1, 2) for each in shuffled])
        other = GridWindows(Grid(10), Application(average))
        other.restore(windows.snapshot())
        taken = Adjust(1e100, 1, 2, 1)
        assert other.process(taken) == windows.process(taken)


def test_the_library_leaves_nulls_out() -> None:
    assert value(Application(average), None, 2, 4) == 3
    assert value(Application(median), None, 2, 4, 9) == 4
    assert value(Application(median), 1, 2, 4, 9) == 3
    assert value(Application(percentile.bind(90)), *range(1, 11), None) == 9
    assert value(Application(percentile.bind(0)), 3, 1) == 1
    assert value(Application(percentile.bind(100)), 3, 1) == 3
    assert value(Application(time_weighted_average, clipping="full"), None, 4) == 4
    for each in (average, median, percentile.bind(50)):
        assert value(Application(each), None) is None
    with pytest.raises(ModuleError, match="101 is no percentage"):
        value(Application(percentile.bind(101)), 1)
