"""A cutover in the control log: the table, what each decision means for one that runs, and that
every reader comes to the same."""

from collections import deque
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lmerge_service.merge.decisions.cutover import (
    MOVES,
    Cutover,
    CutoverEvent,
    CutoverState,
    as_markdown,
    move,
)
from lmerge_service.merge.decisions.ledger import Entry, declaration
from lmerge_service.merge.decisions.records import (
    AbortCutover,
    Action,
    BeginCutover,
    Detach,
    Quarantine,
    Release,
    ReportCutover,
    SetPolicy,
)
from lmerge_service.merge.replica_states import DesiredState
from tests.merge.test_ledger import Log, attach, desired_states, topology, verdict


def begin(leaving: str = "a", coming: str = "b", **fields: Any) -> BeginCutover:
    limits = {"watch": 10, "max_behind": 5, "max_divergences": 0, **fields}
    return BeginCutover(leaving, coming, **limits)


def cutover_of(log: Log) -> Cutover:
    assert log.ledger.cutover is not None
    return log.ledger.cutover


def report(log: Log, task: int, readiness: Any = "ready", at: int = 7, why: str = "") -> Entry:
    """What a task reports of the state that the cutover is in."""
    now = cutover_of(log)
    return log.do(ReportCutover(now.began, now.since, task, readiness, at, why), who=f"task {task}")


def merge(*replicas: str, tasks: int = 2) -> Log:
    return Log(topology(*replicas, output={"topic": "out", "partitions": tasks}))


def in_state(state: CutoverState) -> Log:
    """A cutover a → b of two tasks, with a third replica."""
    log = merge("a", "b", "c")
    log.do(begin())
    if state is CutoverState.ABORTED:
        log.do(AbortCutover())
    for _ in range({CutoverState.WATCHING: 1, CutoverState.DONE: 2}.get(state, 0)):
        report(log, 0)
        report(log, 1)
    assert cutover_of(log).state is state
    return log


# The table


def test_every_state_is_reached_and_every_event_does_something() -> None:
    reached, queue = {CutoverState.JOINING}, deque([CutoverState.JOINING])
    while queue:
        for target in MOVES[queue.popleft()].values():
            if target not in reached:
                reached.add(target)
                queue.append(target)
    assert reached == set(CutoverState)
    assert {event for moves in MOVES.values() for event in moves} == set(CutoverEvent)


def test_c1_what_has_ended_only_another_one_leaves() -> None:
    for state in (CutoverState.DONE, CutoverState.ABORTED):
        assert {each for each in CutoverEvent if move(state, each)} == {CutoverEvent.BEGIN}


def test_the_table_is_in_the_documentation() -> None:
    assert as_markdown() in Path("docs/operations/cutover.md").read_text()


# From the beginning to the end


def test_a_cutover_goes_on_when_all_tasks_are_ready_and_the_last_report_detaches() -> None:
    log = merge("a")
    entry = log.do(begin(attach={"name": "b", "topic": "B", "joining_at": 5}))
    assert entry.accepted
    assert desired_states(log.ledger) == {"a": "attached", "b": "attached"}
    assert cutover_of(log).began == log.ledger.replicas["b"].epoch == entry.version
    report(log, 1, at=30)
    assert cutover_of(log).state is CutoverState.JOINING
    report(log, 0, at=20)
    assert cutover_of(log).state is CutoverState.WATCHING
    assert [cutover_of(log).watched_until(task) for task in (0, 1)] == [30, 40]
    report(log, 0, at=31)
    report(log, 0, "unready")
    report(log, 1, at=41)
    assert cutover_of(log).state is CutoverState.WATCHING, "what task 0 had reported was taken back"
    last = report(log, 0, at=33)
    assert cutover_of(log).state is CutoverState.DONE
    assert desired_states(log.ledger) == {"a": "detached", "b": "attached"}
    gone = log.ledger.replicas["a"]
    assert (gone.since, gone.who, gone.reason) == (last.version, "anna", "cutover to b")


def test_c2_a_report_about_another_state_does_not_count() -> None:
    log = in_state(CutoverState.JOINING)
    before = cutover_of(log)
    late = ReportCutover(before.began, before.since, 0, "ready", 9)
    report(log, 0)
    report(log, 1)
    assert verdict(log.do(late)) == "state: the cutover of version 2 is watching since 4"
    assert not cutover_of(log).ready
    log.do(AbortCutover())
    log.do(begin("c", "b"))
    assert verdict(log.do(late)) == "state: the cutover of version 6 is joining since 6"


@pytest.mark.parametrize(
    ("task", "readiness", "why"),
    [
        (0, "ready", "state: task 0 is known to be ready"),
        (1, "unready", "state: task 1 is known to be unready"),
        (2, "ready", "invalid: there is no task 2"),
    ],
)
def test_a_task_reports_nothing_twice(task: int, readiness: str, why: str) -> None:
    log = in_state(CutoverState.JOINING)
    report(log, 0)
    assert verdict(report(log, task, readiness)) == why


@pytest.mark.parametrize(
    ("action", "why"),
    [
        (begin("a", "a"), "invalid: a cannot take its own place"),
        (begin("x", "b"), "unknown: there is no replica x; there are: a, b, c"),
        (begin("a", "x"), "unknown: there is no replica x; there are: a, b, c"),
        (begin("c", "b"), "state: replica c is quarantined"),
        (begin("b", "c"), "state: replica c is quarantined"),
        (begin("a", "b", attach={"name": "b", "topic": "B"}), "state: replica b is attached"),
        (begin("a", "d", attach={"name": "e", "topic": "E"}), "invalid: what is to be attached"),
        (begin("a", "d", attach={"name": "d", "topic": "A"}), "invalid: "),
        (AbortCutover(), "state: no cutover runs"),
        (ReportCutover(1, 1, 0, "ready", 1), "state: no cutover runs"),
    ],
)
def test_what_cannot_be_begun_is_refused_and_changes_nothing(action: Action, why: str) -> None:
    log = merge("a", "b", "c")
    log.do(Quarantine("c", "to see"))
    before = desired_states(log.ledger)
    assert (verdict(log.do(action)) or "").startswith(why)
    assert log.ledger.cutover is None
    assert desired_states(log.ledger) == before


def test_who_cannot_be_spared_is_not_replaced() -> None:
    log = merge("a", "b")
    log.do(SetPolicy("first", "lazy", "quorum(2)"))
    assert "quorum" in (verdict(log.do(begin())) or "")
    assert log.do(begin("a", "d", attach={"name": "d", "topic": "D"})).accepted, "b and d are left"


# What else is decided meanwhile

RUNNING = (CutoverState.JOINING, CutoverState.WATCHING)


@pytest.mark.parametrize("state", RUNNING)
@pytest.mark.parametrize(
    ("action", "then", "why"),
    [
        (AbortCutover("too slow"), CutoverState.ABORTED, "anna: too slow"),
        (AbortCutover(), CutoverState.ABORTED, "by anna"),
        (Detach("b"), CutoverState.ABORTED, 'after "detach b" by anna'),
        (Detach("a"), CutoverState.ABORTED, 'after "detach a" by anna'),
        (Quarantine("b", "a day ahead"), CutoverState.ABORTED, 'after "quarantine b" by anna'),
        (Quarantine("a", ""), CutoverState.ABORTED, 'after "quarantine a" by anna'),
        (SetPolicy("first", "eager", "max"), CutoverState.JOINING,
         'after "policy first, eager, max" by anna'),
        (SetPolicy("first", "lazy", "quorum(3)"), CutoverState.ABORTED,
         'after "policy first, lazy, quorum(3)" by anna, without a: '),
        (SetPolicy("first", "lazy", "quorum(2)"), CutoverState.JOINING, "after "),
        (declaration(topology("b", "c", output={"topic": "out", "partitions": 2})),
         CutoverState.ABORTED, 'after "declare a topology" by anna'),
        (Detach("c"), None, None),
        (Quarantine("c", ""), None, None),
        (attach("d"), None, None),
    ],
)  # fmt: skip
def test_what_is_decided_meanwhile_holds_and_the_cutover_follows(
    state: CutoverState, action: Action, then: CutoverState | None, why: str | None
) -> None:
    log = in_state(state)
    report(log, 0)
    entry = log.do(action)
    assert entry.accepted, entry
    now = cutover_of(log)
    assert now.state is (then or state)
    assert (now.why or "").startswith(why or "")
    if then is not None:
        assert (now.since, now.ready) == (entry.version, None)
    if then is CutoverState.ABORTED:
        assert log.ledger.replicas["b"].state is DesiredState.ATTACHED or "b" in (why or "")


@pytest.mark.parametrize("state", RUNNING)
def test_while_one_runs_another_is_refused(state: CutoverState) -> None:
    log = in_state(state)
    since = cutover_of(log).since
    refused = verdict(log.do(begin("c", "b")))
    assert refused == (
        f"state: the cutover a → b is {state} since version {since}: abort it first, or wait"
    )


@pytest.mark.parametrize("state", RUNNING)
def test_a_task_that_has_seen_too_many_contradictions_ends_it(state: CutoverState) -> None:
    log = in_state(state)
    report(log, 1, "diverged", why="3 contradictions")
    now = cutover_of(log)
    assert (now.state, now.why) == (CutoverState.ABORTED, "task 1: 3 contradictions")
    assert set(desired_states(log.ledger).values()) == {"attached"}, "nothing else is taken back"


@pytest.mark.parametrize(
    "action", [AbortCutover(), ReportCutover(2, 6, 0, "unready", 9),
               ReportCutover(2, 6, 0, "diverged", 9)],
)  # fmt: skip
def test_t11_once_done_nothing_takes_it_back(action: Action) -> None:
    log = in_state(CutoverState.DONE)
    assert (verdict(log.do(action)) or "").startswith("state: no cutover runs: a → b is done")
    log.do(Quarantine("b", "a late blip"))
    assert cutover_of(log).state is CutoverState.DONE
    assert desired_states(log.ledger) == {"a": "detached", "b": "quarantined", "c": "attached"}


def test_after_the_last_one_has_ended_another_may_begin() -> None:
    for state in (CutoverState.DONE, CutoverState.ABORTED):
        log = in_state(state)
        assert log.do(begin("c", "b")).accepted
        assert cutover_of(log).state is CutoverState.JOINING


# Anything, in any order

NAMES = st.sampled_from(["a", "b", "c", "d"])


class Deciding(RuleBasedStateMachine):
    """Any decisions, in any order; the model is what a person would report of the last cutover."""

    @initialize(tasks=st.integers(1, 3))
    def start(self, tasks: int) -> None:
        self.tasks = tasks
        self.log = merge("a", "b", "c", tasks=tasks)
        self.ready: set[int] = set()
        self.ends = 0

    def do(self, action: Action) -> None:
        before = self.log.ledger.cutover
        detached = self.log.ledger.replicas
        entry = self.log.do(action)
        now = self.log.ledger.cutover
        if now is not None and (before is None or now.since != before.since):
            self.ready.clear()
            if before is not None and before.began == now.began:
                assert now.state in MOVES[before.state].values()
            else:
                assert now.state is CutoverState.JOINING
            if now.state is CutoverState.DONE:
                self.ends += 1
                assert isinstance(action, ReportCutover)
                assert entry.version == now.since
                assert detached[now.leaving].state is DesiredState.ATTACHED
                assert self.log.ledger.replicas[now.leaving].state is DesiredState.DETACHED
                assert self.log.ledger.replicas[now.coming].state is DesiredState.ATTACHED

    @rule(leaving=NAMES, coming=NAMES, attached=st.booleans())
    def begin(self, leaving: str, coming: str, attached: bool) -> None:
        document = None if attached else {"name": coming, "topic": coming.upper()}
        self.do(begin(leaving, coming, attach=document))

    @rule()
    def abort(self) -> None:
        self.do(AbortCutover())

    @precondition(lambda self: self.log.ledger.cutover is not None)
    @rule(
        task=st.integers(0, 3),
        readiness=st.sampled_from(["ready"] * 6 + ["unready", "diverged"]),
        late=st.integers(0, 9),
    )
    def report(self, task: int, readiness: Any, late: int) -> None:
        now = cutover_of(self.log)
        since = now.since - (late == 0)
        last = now.runs and since == now.since and self.ready | {task} == set(range(self.tasks))
        self.do(ReportCutover(now.began, since, task, readiness, 7))
        after = cutover_of(self.log)
        if readiness == "ready" and last:
            assert after.state is not now.state
        elif readiness == "ready" and now.runs and since == now.since and task < self.tasks:
            self.ready.add(task)
        elif readiness == "unready" and since == now.since:
            self.ready.discard(task)

    @rule(name=NAMES, what=st.sampled_from([Detach, Release, Quarantine]))
    def move(self, name: str, what: Any) -> None:
        self.do(what(name, "to see") if what is Quarantine else what(name))

    @rule(name=NAMES)
    def attach(self, name: str) -> None:
        self.do(attach(name))

    @rule(stable=st.sampled_from(["max", "quorum(2)", "quorum(3)"]))
    def change_policy(self, stable: str) -> None:
        self.do(SetPolicy("first", "lazy", stable))

    @invariant()
    def every_reader_comes_to_the_same(self) -> None:
        again = self.log.again()
        assert again.cutover == self.log.ledger.cutover
        assert again.replicas == self.log.ledger.replicas
        cutover = self.log.ledger.cutover
        if cutover is not None and cutover.runs:
            assert set(cutover.ready or {}) == self.ready


TestDeciding = Deciding.TestCase
TestDeciding.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
