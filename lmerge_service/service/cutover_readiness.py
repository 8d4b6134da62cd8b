"""Cutover readiness: what a leading task reports about a cutover that runs.

Theory
    A task reports that it is *ready* when the coming replica alone would do in its partition: it
    is joined, without the leaving one enough are joined for the policy, it is being read, no
    transaction of it is open for longer than `max_behind`, and it is where the output was
    `max_behind` seconds ago. While the cutover watches, it must have come through the span as well.
    Once that no longer holds the task reports *unready*; contradictions to the output are counted.

    All of it is about what is *committed* (`CommittedView`). A task may have merged further than
    it has committed, and may lose that: the next leader begins from the last commit record, and
    carries out there what was decided meanwhile. If the leaving replica went on the report of a
    task that had merged what makes the coming one join, but not committed it, it would never join:
    a gap. A replica that is joined in one commit record is joined in all later ones.

Who owns what
    Nothing: `run` is a subtask of a task that leads.

What happens on a crash at each await
    A report is in the control log or is not; the next leader looks at what it has committed
    itself, and reports what is not reported yet.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

import structlog

from lmerge_service.core import DIVERGENT, Breach
from lmerge_service.elements import INFINITY, START
from lmerge_service.errors import TransportError
from lmerge_service.merge.commit_record import CommitRecord, Diverged
from lmerge_service.merge.decisions.control_log import Control
from lmerge_service.merge.decisions.cutover import Cutover
from lmerge_service.merge.decisions.ledger import Ledger
from lmerge_service.merge.decisions.records import LONGEST_REASON, Decision, ReportCutover
from lmerge_service.merge.guards.verdicts import in_words
from lmerge_service.merge.task_state import TaskState
from lmerge_service.merge.transaction import CommittedView, Transaction
from lmerge_service.service.merge_loop import MergeLoop

__all__ = ("CutoverReadiness",)

log = structlog.get_logger()

_LOOK_SECONDS: Final = 0.2
_PAUSE_SECONDS: Final = 1.0
"""Between two reports of a task."""
_LONGEST: Final = 300


class CutoverReadiness:
    """Of one task, from taking over to giving up."""

    def __init__(
        self,
        state: TaskState,
        ledger: Ledger,
        transaction: Transaction,
        merge_loop: MergeLoop,
        *,
        clock: Callable[[], float],
        unix_ns: Callable[[], int],
    ) -> None:
        self.lacks: str | None = None
        """Why the task is not ready for the cutover that runs, in words; None while it is, and
        while none runs."""
        self._state = state
        self._ledger = ledger
        self._transaction = transaction
        self._merge_loop = merge_loop
        self._clock = clock
        self._unix_ns = unix_ns
        self._past: deque[tuple[float, int]] = deque()
        """The output's stable points over time: the last `max_behind` seconds and one before."""

    # --- counting -------------------------------------------------------------------------------

    def count(self, breaches: Iterable[Breach]) -> None:
        """Counts contradictions of either replica among breaches, for the next commit record."""
        cutover, state = self._ledger.cutover, self._state
        if cutover is None or not cutover.runs:
            return
        for each in breaches:
            if each.kind not in DIVERGENT or each.input not in {cutover.leaving, cutover.coming}:
                continue
            known = state.diverged
            if known is None or known.cutover != cutover.began:
                text = f"{each.input}: {each.kind}, {each.element!r}, kept {each.kept}"
                known = Diverged(cutover.began, 0, text[:_LONGEST])
            state.diverged = Diverged(known.cutover, known.count + 1, known.first)

    @property
    def divergences(self) -> int:
        """Contradictions that were counted since the latest cutover began."""
        return _counted(self._state.diverged, self._ledger.cutover)

    # --- reporting ------------------------------------------------------------------------------

    async def run(self, control: Control) -> None:
        """Writes reports to the control log, until cancelled."""
        while True:
            report = self._report()
            if report is not None:
                await self._write(control, report)
            await asyncio.sleep(_LOOK_SECONDS if report is None else _PAUSE_SECONDS)

    def _report(self) -> Decision | None:
        """The report that is due and not in the log yet."""
        cutover, view = self._ledger.cutover, self._transaction.view
        if cutover is None or not cutover.runs:
            self.lacks = None
            self._past.clear()
            return None
        if view is None or view.record.decided < cutover.since:
            self.lacks = "what was decided is not committed yet"
            return None
        self._remember(cutover, view.record.stable)
        seen = view.record.diverged
        if _counted(seen, cutover) > cutover.max_divergences:
            assert seen is not None
            self.lacks = f"{seen.count} contradictions to the output, the first is of {seen.first}"
            return self._decision(cutover, view.record, "diverged")
        self.lacks = self._lack(cutover, view)
        ready = self.lacks is None
        if ready == (self._state.partition in (cutover.ready or {})):
            return None
        return self._decision(cutover, view.record, "ready" if ready else "unready")

    def _remember(self, cutover: Cutover, stable: int) -> None:
        now, past = self._clock(), self._past
        past.append((now, stable))
        while len(past) > 1 and past[1][0] <= now - cutover.max_behind:
            past.popleft()

    def _lack(self, cutover: Cutover, view: CommittedView) -> str | None:
        """Why the task is not ready, in words."""
        coming, stable = cutover.coming, view.record.stable
        if coming not in view.joined:
            return self._not_joined(coming, view.record)
        left = len(view.joined.keys() - {cutover.leaving})
        if left < (voters := self._state.policy.voters):
            return f"without {cutover.leaving} {left} replicas are joined, and {voters} must be"
        point = view.joined[coming]
        if point == START:
            return f"{coming} has not sent a stable in each of its partitions yet"
        if coming in self._merge_loop.pacing.paused:
            return f"{coming} is paused"
        if self._merge_loop.held(coming):
            return f"a guard holds a stable of {coming}"
        if (why := self._unreadable(coming, cutover.max_behind)) is not None:
            return f"{coming}: {why}"
        if point < self._past[0][1]:
            return f"{coming} is {in_words(point)} and lags, the output is {in_words(stable)}"
        until = cutover.watched_until(self._state.partition)
        if until is not None and min(point, stable) < until:
            at = f"{coming} is {in_words(point)} and the output {in_words(stable)}"
            return f"{at}; they are watched up to {'the end' if until == INFINITY else until}"
        return None

    def _unreadable(self, coming: str, seconds: float) -> str | None:
        """Why records that it may have published so long ago cannot be read, if so."""
        state, now = self._state.replicas.states.get(coming), self._clock()
        transactions = () if state is None or state.unread is None else state.unread.open
        long = (each for each in transactions if each.age(now) > seconds)
        return next((each.words(now) for each in long), None)

    def _not_joined(self, coming: str, record: CommitRecord) -> str:
        state = self._state.replicas.states.get(coming)
        if state is not None and (why := state.quarantined or state.excluded) is not None:
            return f"{coming} is not merged: {why}"
        at = f"the output is {in_words(record.stable)}"
        if coming not in record.replicas:
            return f"{coming} is not merged yet; {at}"
        return f"{coming} is correct from {record.replicas[coming].joining_at} on, and {at}"

    def _decision(self, cutover: Cutover, record: CommitRecord, readiness: str) -> Decision:
        """The same from any leader, for the same commit record."""
        task = self._state.partition
        action = ReportCutover(
            cutover=cutover.began,
            since=cutover.since,
            task=task,
            readiness=readiness,  # type: ignore[arg-type]
            at=record.stable,
            why=(self.lacks or "")[:LONGEST_REASON],
        )
        return Decision(
            id=f"cutover-{cutover.began}-{cutover.since}-{task}-{readiness}-{record.transaction}",
            action=action,
            who=f"task {task}",
            made=self._unix_ns() // 1_000_000,
        )

    async def _write(self, control: Control, decision: Decision) -> None:
        try:
            await control.decide(decision)  # refused: the cutover has moved meanwhile
        except TransportError as error:
            log.warning("cutover report not written yet", id=decision.id, why=str(error))


def _counted(seen: Diverged | None, cutover: Cutover | None) -> int:
    """What was counted of this cutover."""
    if seen is None or cutover is None or seen.cutover != cutover.began:
        return 0
    return seen.count
