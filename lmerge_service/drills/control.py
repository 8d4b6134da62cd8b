"""The Chaos Toolkit's control of a drill: opens the environment before an experiment, closes it
afterwards, and records the timeline.

The result is in the journal, as `drill`; a page can be made of it (`lmerge_service.drills.page`).
"""

from datetime import datetime
from typing import Any, Final

import msgspec
from chaoslib import substitute
from chaoslib.exceptions import InterruptExecution
from chaoslib.hypothesis import within_tolerance

from lmerge_service.drills.plan import DrillError, Refused
from lmerge_service.drills.report import DrillResult
from lmerge_service.drills.session import Session
from lmerge_service.drills.variables import planned
from lmerge_service.errors import LMergeError

__all__ = (
    "after_activity_control",
    "after_experiment_control",
    "before_experiment_control",
)

_SHOWN: Final = 500
_sessions: list[Session] = []


def before_experiment_control(context: dict[str, Any], configuration: dict[str, Any]) -> None:
    """Starts broker, workers and replicas; an experiment that has none is interrupted."""
    try:
        session = Session(planned(context, configuration))
        session.open()
    except (LMergeError, DrillError, Refused, OSError) as error:
        raise InterruptExecution(f"the drill cannot begin: {error}") from error
    _sessions.append(session)


def after_experiment_control(
    context: dict[str, Any],
    state: dict[str, Any],
    configuration: dict[str, Any],
    secrets: dict[str, Any],
) -> None:
    """Puts the result into the journal, and closes the environment."""
    if not _sessions:
        return
    session = _sessions.pop()
    try:
        _hold_to_tolerance(state, configuration, secrets)
        state["drill"] = msgspec.to_builtins(_result(session, context, state))
    finally:
        session.close()


def after_activity_control(context: dict[str, Any], state: dict[str, Any]) -> None:
    """Adds an action to the timeline, and a failed activity to the failures: a drill with failures
    proves nothing."""
    if not _sessions:
        return
    session = _sessions[-1]
    if context["type"] == "action" and session.captured is None:
        met = f" ({state['output']})" if isinstance(state.get("output"), str) else ""
        began = datetime.fromisoformat(state["start"])
        session.environment.done.append((began.timestamp(), f"{context['name']}{met}"))
    if state["status"] == "failed":
        reasons = state.get("exception") or ["no reason given"]
        session.failures.append(f"{context['name']}: {''.join(reasons[-1:]).strip()}"[:_SHOWN])


def _result(session: Session, experiment: dict[str, Any], journal: dict[str, Any]) -> DrillResult:
    judged = session.judged
    why = [*session.failures]
    if journal["status"] != "completed":
        why.append(f"the experiment was {journal['status']}")
    if session.environment.finished is None:
        why.append("the stream did not run to its end")
    if judged is None:
        why.append("the output was not checked")
    else:
        why += [
            f"{found['check']} is {found['outcome']}: {'; '.join(found['evidence'][:3])}"
            for found in judged.findings
            if found["outcome"] != "valid"
        ]
    why += _out_of_tolerance(journal)
    return DrillResult(
        name=experiment.get("tags", ["drill"])[0],
        title=experiment["title"],
        description=experiment["description"],
        passed=not why and not journal["deviated"],
        why=why,
        unplayed=journal["status"] != "completed" or not journal["run"] or _not_done(journal),
        judged=judged,
        timeline=session.timeline(),
        reasons=session.environment.worker_monitor.reasons(),
        steps=[_step(run) for run in journal["run"]],
    )


def _not_done(journal: dict[str, Any]) -> bool:
    """Whether a fault could not be injected; a timeout while waiting for the output is not one."""
    return any(
        run["status"] == "failed"
        and run["activity"]["type"] == "action"
        and run["activity"]["provider"].get("func") != "finish"
        for run in journal["run"]
    )


def _hold_to_tolerance(
    journal: dict[str, Any], configuration: dict[str, Any], secrets: dict[str, Any]
) -> None:
    """Records in the journal whether probes of the method and of the rollbacks are within their
    tolerance; the toolkit checks only the hypothesis' probes."""
    for run in (*journal["run"], *journal["rollbacks"]):
        if "tolerance" in run["activity"] and run["status"] == "succeeded":
            run["tolerance_met"] = _is_within(
                run["activity"]["tolerance"], run["output"], configuration, secrets
            )


def _is_within(
    tolerance: Any, output: Any, configuration: dict[str, Any], secrets: dict[str, Any]
) -> bool:
    if isinstance(tolerance, str):
        tolerance = substitute(tolerance, configuration, secrets)
    try:
        return bool(within_tolerance(tolerance, output, configuration, secrets))
    except (TypeError, AttributeError):
        return False  # nothing that can be compared with the tolerance is within it


def _out_of_tolerance(journal: dict[str, Any]) -> list[str]:
    states = journal["steady_states"]
    return [
        f"{run['activity']['name']}: {run['output']}, expected {run['activity']['tolerance']}"
        for run in (*journal["run"], *journal["rollbacks"])
        if not run.get("tolerance_met", True)
    ] + [
        f"{probe['activity']['name']} ({when} the faults): {probe.get('output')}, expected "
        f"{probe['activity'].get('tolerance')}"
        for when, state in (("before", states["before"]), ("after", states["after"]))
        for probe in (state or {}).get("probes", [])
        if not probe.get("tolerance_met")
    ]


def _step(run: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": run["activity"]["name"],
        "type": run["activity"]["type"],
        "status": run["status"],
        "seconds": round(run.get("duration", 0.0), 2),
        "output": run.get("output"),
    }
