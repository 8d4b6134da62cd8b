"""What workers answer becomes one picture, its past and its log."""

from typing import Any

import pytest

from lmerge_service.dashboard.charts import MOST_LINES, MOST_POINTS, race
from lmerge_service.dashboard.history import History, Sample
from lmerge_service.dashboard.merged import MergeView, merged
from lmerge_service.dashboard.model import Model, WatchedMerge
from lmerge_service.dashboard.panels import panels, replica_findings
from lmerge_service.dashboard.polling import pause_after
from tests.dashboard.documents import A, B, answer, output, replica, status, task


def watch(*rounds: dict[str, Any]) -> Model:
    """A model that took one round of answers (documents, or None, by address) each second."""
    model = Model()
    for second, each in enumerate(rounds):
        at = 1_000_000.0 + second
        model.take(at, {a: answer(doc, None if doc else "refused") for a, doc in each.items()})
    return model


def only(model: Model) -> WatchedMerge:
    (found,) = model.merges.values()
    return found


def view_of(model: Model) -> MergeView:
    found = only(model).view
    assert found is not None
    return found


def test_two_workers_that_share_tasks_are_one_merge() -> None:
    one = status(
        replica("a", inserts=10, stable_point=90, breaches={"x": 1}, lag_records=5),
        tasks=(task(0), task(1, "follows")),
        output=output(stable_point=90, inserts=10, live_events=3),
    )
    other = status(
        replica("a", inserts=30, stable_point=80, breaches={"x": 2}, state="paused", lag_records=7),
        tasks=(task(1, leader="b"), task(0, "follows")),
        output=output(stable_point=80, inserts=30, live_events=4, leader="b"),
    )
    view = view_of(watch({A: one, B: other}))
    assert (view.stable_point, view.counts["live_events"]) == (80, 7)
    (row,) = view.replicas
    assert (row.counts["inserts"], row.stable_point, row.state) == (40, 80, "paused")
    assert (row.breaches, row.lag) == ({"x": 3}, 7)
    assert [(t.partition, t.worker, t.leader, t.followers) for t in view.tasks] == [
        (0, A, "a", 1),
        (1, B, "b", 1),
    ]
    assert view.leaders == {"a": 1, "b": 1}


def test_a_standby_counts_for_nothing_while_another_worker_leads() -> None:
    leading = status(replica("a", inserts=10), detached={"c": 0})
    standing_by = status(
        replica("a", inserts=3, state="joining"), tasks=(task(0, "follows"),), state="standby"
    )
    view = view_of(watch({A: standing_by, B: leading}))
    (row,) = view.replicas
    assert view.detached == {"c": 0}
    assert (row.counts["inserts"], row.state) == (10, "joined")


def test_what_a_worker_found_while_it_led_stays_when_another_one_leads() -> None:
    leading = status(replica("a", inserts=10, breaches={"x": 1}))
    led = status(
        replica("a", inserts=7, dead_letters=2, breaches={"x": 3}, repeated=5, repeated_at="t"),
        tasks=(task(0, "follows"),), state="standby",
    )  # fmt: skip
    (row,) = view_of(watch({A: led, B: leading})).replicas
    assert (row.counts["dead_letters"], row.counts["repeated"], row.repeated_at) == (2, 5, "t")
    assert (row.breaches, row.counts["inserts"]) == ({"x": 4}, 10)


def test_a_transaction_is_a_finding_once_it_is_open_for_long() -> None:
    def opened(seconds: float) -> dict[str, Any]:
        return {"partition": 0, "offset": 7, "records": 3, "seconds": seconds}

    (usual,) = view_of(watch({A: status(replica("a", open_transactions=[opened(9.9)]))})).replicas
    assert replica_findings(usual) == []
    several = [opened(9.9), opened(10.0)]
    (long,) = view_of(watch({A: status(replica("a", open_transactions=several))})).replicas
    assert replica_findings(long) == [("open transactions", 1)]


def test_who_is_away_is_named_and_what_was_known_stays() -> None:
    model = watch({A: status()}, {A: None}, {A: status()})
    kinds = [(each.kind, each.text) for each in only(model).happenings.newest_first()]
    assert ("worker", f"{A} does not answer: refused") in kinds
    assert ("worker", f"{A} is running") in kinds
    away = watch({A: status()}, {A: None})
    view = view_of(away)
    assert (view.known, view.name, view.health) == (False, "m", "degraded")
    assert [each.name for each in view.replicas] == ["a", "b"]
    assert [sample.blank for sample in only(away).history._samples] == [False, True]


def test_a_merge_is_forgotten_when_its_last_worker_runs_another_one() -> None:
    other = status(name="other", output=output(topic="elsewhere"))
    model = watch({A: status(), B: status()}, {A: other, B: status()}, {A: other, B: other})
    assert [name for name, _ in model.merges] == ["other"]
    assert only(model).addresses == [A, B]


def test_how_long_the_longest_commit_has_been_under_way_is_drawn_in_milliseconds() -> None:
    tasks = ({**task(0), "commit_seconds": 0.25}, {**task(1), "commit_seconds": 2.5}, task(2))
    model = watch({A: status()}, {A: status(tasks=tasks)}, {A: status()})
    points = only(model).history.points("commit", 0.0, 10)
    assert [value for _, value in points] == [0.0, 2_500.0, 0.0]


# --- who brings nothing new -----------------------------------------------------------------------


def going_on(seconds: int, *, stops: int, until: int, **more: Any) -> list[dict[str, Any]]:
    """An output that goes on until a second, and a replica `b` that stops earlier."""
    return [
        {A: status(
            replica("a", inserts=min(at, until)),
            replica("b", inserts=min(at, stops), **more),
            output=output(stable_point=min(at, until)),
        )}
        for at in range(seconds)
    ]  # fmt: skip


def test_a_replica_that_died_is_quiet_ten_seconds_later_and_not_before() -> None:
    assert only(watch(*going_on(15, stops=5, until=99))).quiet.seconds == {}
    watched = only(watch(*going_on(16, stops=5, until=99)))
    assert watched.quiet.seconds == {"b": 10.0}
    made = panels(watched, {}, {})
    assert "b has brought nothing new for 10 s" in made["attention"]
    assert "Nothing needs attention" not in made["attention"]
    assert "1 quiet replica" in made["headline"]
    assert "all is well" not in made["headline"]
    assert "nothing new for 10 s" in made["replicas"]
    assert "joined, quiet" in made["shape"]
    again = watch(*going_on(16, stops=5, until=99), *going_on(20, stops=19, until=99)[17:])
    assert only(again).quiet.seconds == {}, "it goes on"


def test_nobody_is_quiet_where_nothing_goes_on() -> None:
    assert only(watch(*going_on(60, stops=5, until=5))).quiet.seconds == {}
    watched = only(watch(*going_on(60, stops=5, until=12)))
    assert watched.quiet.seconds == {}, "for seven seconds, and then all of them"
    assert "all is well" in panels(watched, {}, {})["headline"]


@pytest.mark.parametrize(
    "more", [{"state": "quarantined"}, {"state": "joining"}, {"ended": True},
             {"held": [{"guard": "leap"}]}],
)  # fmt: skip
def test_a_replica_of_which_nothing_is_expected_is_not_quiet(more: dict[str, Any]) -> None:
    assert only(watch(*going_on(60, stops=5, until=99, **more))).quiet.seconds == {}


def test_while_no_worker_answers_nobody_becomes_quiet() -> None:
    known = going_on(15, stops=5, until=99)
    away = [{A: None} for _ in range(30)]
    assert only(watch(*known, *away, *known[-1:])).quiet.seconds == {}


# --- what happened --------------------------------------------------------------------------------


def test_a_task_that_moves_has_a_line_though_nobody_led_it_for_a_while() -> None:
    follows = status(tasks=(task(0, "follows"),), state="standby")
    model = watch({A: status(), B: follows}, {A: None, B: follows}, {A: None, B: status()})
    lines = [each.text for each in only(model).happenings.newest_first()]
    assert f"task 0 moved from {A} to {B}" in lines


def test_what_is_neither_worker_nor_query_is_shown_as_unknown() -> None:
    model = watch({A: {"hello": 1}, B: None})
    assert not model.merges
    assert model.unknown == {A: "it is neither a worker nor a query", B: "refused"}


def test_a_document_of_another_version_does_not_break_the_picture() -> None:
    bare = {"name": "m", "replicas": [{"name": "a"}], "output": {"topic": "merged"}}
    model = watch({A: bare}, {A: {**bare, "tasks": [{"partition": 0, "role": "leads"}]}})
    html = panels(only(model), {}, {})
    assert "?" in html["replicas"]


def test_changes_become_lines_newest_first_and_decisions_are_there_once() -> None:
    decided = {
        "id": "x", "version": 2, "accepted": True, "why": None, "what": "detach b", "who": "anna",
        "made": 1_000_001_500,
    }  # fmt: skip
    watched = WatchedMerge(("m", "merged"), [A])
    out = output(leader="b", leader_why="stable(7)")
    quarantined = status(
        replica("a", state="quarantined", why="lies"), replica("b"), output=out,
        reasons=["a lies"], reason_kinds=["quarantined"],
    )  # fmt: skip
    for at, document in ((1.0, status()), (2.0, quarantined), (3.0, quarantined)):
        watched.take(1_000_000 + at, {A: answer(document, decisions=[decided])})
    lines = [(each.kind, each.text) for each in watched.happenings.newest_first()]
    assert lines[:3] == [
        ("leader", "b leads, after a: stable(7)"),
        ("replica", "a is quarantined, was joined: lies"),
        ("reason", "a lies"),
    ]
    assert [text for kind, text in lines if kind == "decision"] == ["detach b, by anna (version 2)"]


def test_rates_are_of_all_workers_and_start_anew_with_a_process() -> None:
    def at(count: int) -> dict[str, Any]:
        return status(replica("a", inserts=count), output=output(inserts=count))

    model = watch({A: at(100), B: at(0)}, {A: at(200), B: at(50)})
    assert only(model).per_second == {"a": 150.0, ">": 150.0}
    model = watch({A: at(100)}, {A: at(10)})
    assert only(model).per_second == {}


# --- the past -------------------------------------------------------------------------------------


def test_ten_minutes_are_kept_and_no_more() -> None:
    kept = History()
    for at in range(2_000):
        kept.add(Sample(float(at), {"a": 1.0}))
    assert len(kept) == 601
    assert len(kept.points("a", 0.0, 100)) <= 101


def test_a_gap_stays_a_gap_however_few_points_are_drawn() -> None:
    kept = History()
    for at in range(100):
        kept.add(Sample(float(at), {"a": 1.0}, "a", blank=False) if not 40 <= at < 60 else
                 Sample(float(at), blank=True))  # fmt: skip
    assert any(value is None for _, value in kept.points("a", 0.0, 10))
    assert kept.leaders(0.0) == [(0.0, 39.0, "a"), (60.0, 99.0, "a")]


def test_a_pause_of_the_dashboard_itself_is_a_gap() -> None:
    kept = History()
    for at in (0.0, 1.0, 30.0, 31.0):
        kept.add(Sample(at, {"a": at}, "a"))
    assert kept.points("a", 0.0, 100) == [
        (0.0, 0.0), (1.0, 1.0), (15.5, None), (30.0, 30.0), (31.0, 31.0)
    ]  # fmt: skip
    assert kept.leaders(0.0) == [(0.0, 1.0, "a"), (30.0, 31.0, "a")]


def test_a_clock_that_is_set_back_forgets_what_would_be_later() -> None:
    kept = History()
    for at in (10.0, 11.0, 5.0):
        kept.add(Sample(at, {"a": at}))
    assert kept.points("a", 0.0, 100) == [(5.0, 5.0)]


def test_changes_of_leader_meet_without_a_hole() -> None:
    kept = History()
    for at, leader in enumerate("aabbb"):
        kept.add(Sample(float(at), {}, leader))
    assert kept.leaders(0.0) == [(0.0, 2.0, "a"), (2.0, 4.0, "b")]


def test_a_hundred_replicas_have_a_few_lines_and_the_leader_is_one() -> None:
    names = [f"r{number}" for number in range(100)]
    history = History()
    for at in range(500):
        history.add(Sample(float(at), {f"stable {name}": 1.0 * at for name in names}, "r77"))
    view = merged([(A, status(*map(replica, names), output=output(leader="r77")), None)])
    drawn = race(view, history, 0.0, 500.0, relative=False, dark=False)
    lines = [each for each in drawn["series"] if each["data"]]
    assert len(lines) == MOST_LINES + 1, "and the output"
    assert "r77" in {each["name"] for each in lines}
    assert all(len(each["data"]) <= MOST_POINTS + 1 for each in lines)


def test_distances_are_to_the_furthest_at_each_moment() -> None:
    history = History()
    history.add(Sample(1.0, {"stable a": 5_000.0, "stable b": 3_000.0, "output": 4_000.0}, "a"))
    drawn = race(merged([(A, status(), None)]), history, 0.0, 9.0, relative=True, dark=True)
    ends = {each["name"]: each["data"] for each in drawn["series"]}
    assert ends["a"] == [[1000, 0.0]]
    assert ends["b"] == [[1000, -2.0]]
    assert ends["the output"] == [[1000, -1.0]]


# --- asking ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("took", [0.0, 0.003, 0.02, 0.2])
def test_being_asked_costs_a_worker_at_most_a_hundredth(took: float) -> None:
    assert took / pause_after(took, 10_000_000) <= 0.0100001


def test_a_worker_that_waits_for_the_processor_is_asked_as_often() -> None:
    assert pause_after(4.0, 20_000) == 1.0


# --- what is shown --------------------------------------------------------------------------------


def test_all_that_comes_from_workers_is_escaped() -> None:
    evil = "<script>alert(1)</script>"
    held = {"guard": evil, "partition": 0, "offset": 1, "reason": evil, "remedy": evil,
            "seconds": 1.0, "waits_for": [evil]}  # fmt: skip
    document = status(
        replica(evil, topic=evil, state="quarantined", why=evil, held=[held], breaches={evil: 1}),
        name=evil, reasons=[evil], reason_kinds=[evil], detached={evil: 1}, state=evil,
        output=output(topic=evil, leader=evil, gap=evil, policy={"insert": evil}),
        cutover={"leaving": evil, "coming": evil, "state": evil, "why": evil, "tasks": [],
                 "who": evil, "since": evil},
        tasks=({**task(0, leader=evil), "stuck": evil, "cutover": evil},),
    )  # fmt: skip
    html = "".join(panels(only(watch({A: document})), {}, {evil: evil}).values())
    assert "<script" not in html
    assert "&lt;script&gt;" in html


def test_guards_that_hold_something_are_shown_with_what_to_do() -> None:
    held = {"guard": "max_leap", "partition": 2, "offset": 7, "reason": "too far", "seconds": 5.0,
            "remedy": "raise max_leap", "waits_for": ["b is at 3"]}  # fmt: skip
    document = status(replica("a", held=[held]), reasons=["x"], reason_kinds=["held_stable"])
    html = panels(only(watch({A: document})), {}, {})["attention"]
    for each in ("max_leap", "partition 2, offset 7", "raise max_leap", "b is at 3"):
        assert each in html
