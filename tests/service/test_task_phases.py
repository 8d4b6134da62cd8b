"""What a task may be on a worker: every transition of the table, and nothing that is not in it."""

from collections import deque
from itertools import product
from pathlib import Path

import pytest

from lmerge_service.service.task_phases import (
    PHASES,
    Lifecycle,
    Phase,
    PhaseEvent,
    after,
    as_markdown,
)

MOVES = [(phase, event) for phase in Phase for event in PHASES[phase]]
NEVER = [each for each in product(Phase, PhaseEvent) if each not in MOVES]

WAY = {
    Phase.GONE: [],
    Phase.RECOVERING: [PhaseEvent.ASSIGNED],
    Phase.FOLLOWING: [PhaseEvent.ASSIGNED, PhaseEvent.CAUGHT_UP],
    Phase.LEADING: [PhaseEvent.ASSIGNED, PhaseEvent.TOOK_OVER],
    Phase.FENCED: [PhaseEvent.ASSIGNED, PhaseEvent.TOOK_OVER, PhaseEvent.FENCED],
}


def brought_to(phase: Phase) -> Lifecycle:
    lifecycle = Lifecycle()
    for event in WAY[phase]:
        lifecycle.move(event)
    assert lifecycle.phase is phase
    return lifecycle


@pytest.mark.parametrize(("phase", "event"), MOVES)
def test_every_transition_leads_where_the_table_does(phase: Phase, event: PhaseEvent) -> None:
    lifecycle = brought_to(phase)
    lifecycle.move(event)
    assert lifecycle.phase is after(phase, event)
    assert lifecycle.is_warm is (lifecycle.phase in {Phase.LEADING, Phase.FOLLOWING})


@pytest.mark.parametrize(("phase", "event"), NEVER)
def test_what_is_not_in_the_table_does_not_happen(phase: Phase, event: PhaseEvent) -> None:
    assert after(phase, event) is None
    with pytest.raises(AssertionError, match=f"{event} while {phase}"):
        brought_to(phase).move(event)


@pytest.mark.parametrize("start", Phase)
@pytest.mark.parametrize("goal", Phase)
def test_no_phase_is_an_end(start: Phase, goal: Phase) -> None:
    reached, queue = {start}, deque([start])
    while queue:
        for target in PHASES[queue.popleft()].values():
            if target not in reached:
                reached.add(target)
                queue.append(target)
    assert goal in reached


def test_n1_a_fenced_task_is_not_warm_and_leads_only_with_a_state_read_anew() -> None:
    assert not brought_to(Phase.FENCED).is_warm
    assert Phase.LEADING not in PHASES[Phase.FENCED].values()
    into = {phase for phase in Phase if Phase.LEADING in PHASES[phase].values()}
    assert into == {Phase.RECOVERING}


def test_a_task_has_begun_once_it_has_led_or_followed_until_it_is_revoked() -> None:
    lifecycle = Lifecycle()
    assert not lifecycle.has_begun
    for event, begun in (
        (PhaseEvent.ASSIGNED, False),
        (PhaseEvent.FAILED, False),
        (PhaseEvent.TOOK_OVER, True),
        (PhaseEvent.FENCED, True),
        (PhaseEvent.CONFIRMED, True),
        (PhaseEvent.REVOKED, False),
    ):
        lifecycle.move(event)
        assert lifecycle.has_begun is begun, event


def test_the_page_has_the_table() -> None:
    assert as_markdown() in Path("docs/operations/running.md").read_text()
