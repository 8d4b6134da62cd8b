"""The worked examples of user modules and windows: windows and members, clipping, output as of the
watermark, liveliness, what is cleaned up."""

from typing import Any

import pytest

from lmerge_service.elements import INFINITY, Adjust, Element, Insert, Stable
from lmerge_service.errors import ConfigurationError
from lmerge_service.queries.aggregates import Count
from lmerge_service.queries.module_library import average, time_weighted_average
from lmerge_service.queries.modules import Application, uda, udo
from lmerge_service.queries.netting import net
from lmerge_service.queries.operators.count_windows import CountWindows
from lmerge_service.queries.operators.grids import Grid, GridWindows
from lmerge_service.queries.operators.protocol import Operator
from lmerge_service.queries.operators.snapshot_windows import SnapshotWindows
from lmerge_service.queries.window_policies import Clipping, Timestamping, Window, clipped, stamped
from lmerge_service.tdb import TDB
from tests.queries.vectors import cases, element, elements, outputs_of, tdb, time, vectors
from tests.queries.windows import lifetimes, passing

CASES = {name: case for name, case in vectors("streaminsight").items() if "op" in case}


def of_op(op: str) -> list[Any]:
    return [pytest.param(case, id=id_) for id_, case in CASES.items() if case["op"] == op]


@udo("1")
def members(values: Any) -> Any:
    return [tuple(values)]


@uda("1")
def counted(values: Any) -> Any:
    return len(values)


def grid_of(given: dict[str, Any]) -> Grid:
    return Grid(given["size"], given.get("hop", given["size"]), given.get("offset", 0))


def fed(operator: Operator, events: list[Any], *stables: int) -> list[Element]:
    inserts = [element(["insert", *event]) for event in events]
    return operator.process_batch([*inserts, *map(Stable, stables)])


def windows_in(emitted: list[Element]) -> list[Any]:
    inserts = sorted((e for e in emitted if isinstance(e, Insert)), key=lambda e: e.vs)
    return [{"window": [e.vs, e.ve], "members": list(e.payload)} for e in inserts]


@pytest.mark.parametrize("case", of_op("windows"))
def test_windows_and_their_members(case: Any) -> None:
    given = case["given"]
    use = Application(members)
    operator = (
        SnapshotWindows(use) if given["kind"] == "snapshot" else GridWindows(grid_of(given), use)
    )
    assert windows_in(fed(operator, given["events"], INFINITY)) == case["expect"]["windows"]


@pytest.mark.parametrize("case", of_op("window_count"))
def test_a_count_per_window(case: Any) -> None:
    given = case["given"]
    operator = GridWindows(grid_of(given), Count(), row=lambda _, values: values[0])
    emitted = fed(operator, given["events"], INFINITY)
    assert [[e.payload, e.vs, e.ve] for e in emitted if isinstance(e, Insert)] == case["expect"][
        "output"
    ]


@pytest.mark.parametrize("case", of_op("count_windows"))
def test_count_windows_end_one_tick_behind_their_last_point(case: Any) -> None:
    """The papers leave the end open."""
    given, expect = case["given"], case["expect"]
    operator = CountWindows(given["n"], Application(members), by=given["by"])
    table = TDB()
    for step, events in (("before", given["events"]), ("after", [given.get("late")])):
        for emitted in fed(operator, [event for event in events if event]):
            table.apply(emitted)
        wanted = expect.get(step, expect.get("windows"))
        assert sorted((e.vs, e.ve, list(e.payload)) for e in table) == [  # type: ignore[call-overload]
            (w["first"], w["last"] + 1, w["members"]) for w in wanted
        ]


@pytest.mark.parametrize("case", of_op("clip"))
def test_clipping(case: Any) -> None:
    given, expect = case["given"], case["expect"]
    if "event" in given:
        window, (_, vs, ve) = Window(*given["window"]), given["event"]
        for policy, wanted in expect.items():
            assert list(clipped(Clipping(policy), window, vs, time(ve))) == [
                wanted[0],
                time(wanted[1]),
            ]
        return
    operator = GridWindows(Grid(given["size"]), Application(lifetimes, clipping="full"))
    emitted = [e for e in fed(operator, given["events"], INFINITY) if isinstance(e, Insert)]
    assert [e.payload for e in emitted] == [
        (*w["window"], *(tuple(event) for event in w["events"])) for w in expect["windows"]
    ]


@pytest.mark.parametrize("case", of_op("timestamp"))
def test_timestamping(case: Any) -> None:
    (_, vs, ve), window = case["given"]["event"], Window(*case["given"]["window"])
    for policy, wanted in case["expect"].items():
        if wanted == "error":
            with pytest.raises(ValueError, match="begins before its window"):
                stamped(Timestamping(policy), window, vs, ve)
        else:
            found = stamped(Timestamping(policy), window, vs, ve)
            assert found == (None if wanted is None else tuple(wanted))


@pytest.mark.parametrize("case", of_op("udm"))
def test_modules(case: Any) -> None:
    given, expect = case["given"], case["expect"]
    if "calls" in given:
        use, state = Application(average), Application(average).empty()
        anywhere = (None, Window(0, 1))
        for (call, value), wanted, result in zip(
            given["calls"], expect["states"], expect["results"], strict=True
        ):
            state = use.moved(state, value, 1 if call == "add" else -1, anywhere)
            assert list(state) == wanted
            assert use.results(None, Window(0, 1), state)[0].payload == result
        return
    if "payloads" in given:
        use, window = Application(average), Window(0, 1)
        events = [(value, 0, 1) for value in given["payloads"]]
    else:
        window, events = Window(*given["window"]), [tuple(e) for e in given["events"]]
        use = Application(time_weighted_average, clipping=given["clipping"])
    (row,) = use.results(None, window, use.state_of(window, events))
    assert row == (expect["result"], *window)


NETTED = {"si-op-3", "si-op-4", "si-op-8", "si-op-10"}
"""The printed algorithm takes results back and repeats them, unchanged ones too (3, 4), and where
an end moves (8, 10)."""


@pytest.mark.parametrize("case", of_op("window_op"))
def test_output_as_of_the_watermark(case: Any) -> None:
    given, expect = case["given"], case["expect"]
    kind = given["windows"]["kind"]
    operator: Any = (
        SnapshotWindows(Application(counted), emit="on_watermark")
        if kind == "snapshot"
        else GridWindows(
            grid_of(given["windows"]), Count(), row=lambda _, n: n[0], emit="on_watermark"
        )
    )
    table = TDB()
    steps = zip(given["stream"], expect["outputs"], expect["watermark"], strict=True)
    for row, wanted, watermark in steps:
        emitted = operator.process(element(row))
        for each in emitted:
            table.apply(each)
        data = [e for e in emitted if type(e) is not Stable]
        printed = elements(wanted)
        assert data == (net(printed) if case["id"] in NETTED else printed)
        assert operator.max_event_time == watermark
    assert table == tdb(expect["table"])


def changed_windows(operator: GridWindows, change: Element) -> list[list[int]]:
    emitted = operator.process(change)
    return [
        list(w)
        for w in sorted({(e.vs, e.vs + operator.grid.size) for e in emitted})  # type: ignore[union-attr]
    ]


def test_affected_windows() -> None:
    """Of a module that sees lifetimes, clipped, the windows affected are those that change."""
    case = CASES["si-affected"]
    for row, wanted in zip(case["given"]["changes"], case["expect"]["affected"], strict=True):
        change = element(row)
        operator = GridWindows(Grid(case["given"]["size"]), Application(lifetimes, clipping="full"))
        operator.process(Insert("other", 30, 31))
        if isinstance(change, Adjust):
            operator.process(Insert(change.payload, change.vs, change.vold))
        assert changed_windows(operator, change) == wanted


def test_affected_windows_of_a_module_that_sees_ends() -> None:
    case = CASES["si-affected-unclipped"]
    given, expect = case["given"], case["expect"]
    for clipping, wanted in (("none", "needed_unclipped"), ("right", "needed_right_clipped")):
        operator = GridWindows(Grid(given["size"]), Application(lifetimes, clipping=clipping))
        name, vs, ve = given["event"]
        operator.process_batch([Insert(name, vs, ve), Insert("other", 30, 31)])
        assert changed_windows(operator, Adjust(name, vs, ve, given["re_new"])) == expect[wanted]


def liveliness(case: Any, emit: Any = "on_update") -> GridWindows:
    given = case["given"]
    if given.get("restriction") == "TimeBoundOutputInterval":
        use = Application(passing, timestamping="unchanged")
    else:
        use = Application(lifetimes, clipping=given.get("clipping", "none"))
    return GridWindows(grid_of(given), use, emit=emit)


@pytest.mark.parametrize("id_", ["si-live-2", "si-live-3", "si-live-4", "si-live-5", "si-live-6"])
def test_liveliness(id_: str) -> None:
    case = CASES[id_]
    operator, given = liveliness(case), case["given"]
    fed(operator, given["events"])
    stables = []
    for point in given.get("ctis", [given["cti"]]):
        operator.process(Stable(point))
        stables.append(operator.stable)
    assert stables == case["expect"].get("ctis", [case["expect"].get("cti")])


def test_without_any_restriction_no_stable_point_could_be_announced() -> None:
    """si-live-1: there is no policy by which output may begin anywhere."""
    with pytest.raises(ConfigurationError, match="no timestamping 'anywhere'"):
        Application(passing, timestamping="anywhere")


def test_an_end_at_the_stable_point_may_still_move() -> None:
    """si-live-7: 10 is an upper bound; b ends exactly at the stable point, so [5, 10) is open."""
    case = CASES["si-live-7"]
    operator = liveliness(case)
    fed(operator, case["given"]["events"], case["given"]["cti"])
    assert operator.stable == 5 <= case["expect"]["cti_at_most"]


def test_overlapping_windows_hold_the_stable_point_at_the_first_that_is_open() -> None:
    """si-live-8: not at the end of the last that is closed."""
    case = CASES["si-live-8"]
    for emit in ("on_watermark", "on_close"):
        operator = GridWindows(
            grid_of(case["given"]),
            Count(),
            row=lambda _, n: n[0],
            emit=emit,
        )
        outputs = outputs_of(operator, case["given"])
        data = [[e for e in step if type(e) is not Stable] for step in outputs]
        assert data == [elements(step) for step in case["expect"]["outputs"]]
        assert outputs[1][-1] == Stable(case["expect"]["largest_safe_cti"])


def test_an_aligned_count_is_not_bound_by_time() -> None:
    """si-live-9: the stable point does not pass, and what is emitted later is legal."""
    case = CASES["si-live-9"]
    operator = GridWindows(
        grid_of(case["given"]), Count(), row=lambda _, n: n[0], emit="on_watermark"
    )
    outputs = outputs_of(operator, case["given"])
    data = [[e for e in step if type(e) is not Stable] for step in outputs]
    assert data == [elements(step) for step in case["expect"]["outputs"]]
    assert outputs[1] == [Stable(0)]


def kept(operator: GridWindows) -> tuple[list[list[int]], list[str]]:
    """The windows that are kept, or that an event kept waits for; the events kept."""
    windows, events = set(operator._windows), set()
    for groups in operator._windows.values():
        for cell in groups.values():
            events |= {item[0] if isinstance(item, tuple) else item for item in cell.state}
    for _, value, vs, ve in operator._waiting:
        windows |= {w for w in operator.grid.windows(vs, ve) if w > operator.max_event_time}
        events.add(value)
    return [[w, w + operator.grid.size] for w in sorted(windows)], sorted(events)


@pytest.mark.parametrize("id_", ["si-clean-1", "si-clean-2", "si-clean-3", "si-clean-4"])
def test_what_is_kept_behind_a_stable(id_: str) -> None:
    given, expect = CASES[id_]["given"], CASES[id_]["expect"]
    use = (
        Application(members)
        if given["module"] == "time-insensitive"
        else Application(lifetimes, clipping=given["clipping"])
    )
    operator = GridWindows(Grid(given["size"]), use)
    fed(operator, given["events"], given["cti"])
    assert kept(operator) == (expect["windows_kept"], expect["events_kept"])


def test_an_end_at_the_stable_point_keeps_the_windows() -> None:
    """si-clean-5 is what must not happen: the end may still move, and the windows change."""
    case = CASES["si-clean-5"]
    operator = GridWindows(Grid(case["given"]["size"]), Application(lifetimes))
    fed(operator, case["given"]["events"], case["given"]["cti"])
    assert kept(operator)[0] == case["expect"]["windows_closed_by_rule"]


def test_a_snapshot_that_ends_at_the_stable_point_is_kept() -> None:
    """si-clean-6 likewise."""
    case = CASES["si-clean-6"]
    operator, table = SnapshotWindows(Application(members)), TDB()
    emitted = fed(operator, case["given"]["events"], case["given"]["cti"])
    for each in [*emitted, *operator.process(element(case["given"]["then"]))]:
        table.apply(each)
    assert sorted([e.vs, e.ve] for e in table) == case["expect"]["windows_after"]


@pytest.mark.parametrize("case", of_op("admissible"))
def test_what_may_follow_a_stable(case: Any) -> None:
    row = case["given"]["event"]
    events = [tuple(row[1:4])] if row[0] == "adjust" else []
    wrong = TDB(events, case["given"]["cti"]).violation(element(row))
    assert (wrong is None) == case["expect"]["admissible"]


def test_every_case_has_a_test() -> None:
    """Those of other families: tables, sync times, classes of events."""
    known = {
        *("windows", "window_count", "count_windows", "clip", "timestamp", "udm", "window_op"),
        *("affected", "liveliness", "cleanup", "admissible"),
    }
    assert {case["op"] for case in CASES.values()} - known == {"cht", "sync", "event_class"}
    assert len(cases("streaminsight", "si-live")) == 9
    assert len(cases("streaminsight", "si-clean")) == 6
