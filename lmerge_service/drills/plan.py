"""The settings of a drill: the `configuration` of an experiment, validated."""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import msgspec

from lmerge_service.drills.observability_checks import InjectedFault
from lmerge_service.drills.replica import FaultProfile

__all__ = (
    "CONTROL",
    "NAME",
    "OUTPUT",
    "WORKERS_GROUP",
    "DrillError",
    "DrillPlan",
    "Refused",
    "plan_of",
)

NAME: Final = "drill"
"""Of the merge."""
OUTPUT: Final = "out"
CONTROL: Final = f"{OUTPUT}.control"
WORKERS_GROUP: Final = f"lmerge.{NAME}.workers"


class DrillError(Exception):
    """A drill could not be run as it is written, so that it proves nothing."""


class Refused(Exception):  # noqa: N818 (a mistake of who wrote the experiment)
    """A configuration is wrong; the message is for people."""


class DrillPlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The initial processes of a drill, and its requirements."""

    replicas: dict[str, FaultProfile] = msgspec.field(
        default_factory=lambda: {name: FaultProfile() for name in "abc"}
    )
    plans: dict[str, Annotated[int, msgspec.Meta(ge=1)]] = {}
    """By which of its plans each replica runs a query, whose result has equal events
    (`equal_events`), and which case R4 merges; none: replicas publish the stream itself."""
    workers: int = 2
    partitions: int = 1
    nodes: Literal[1, 3] = 1
    """Brokers; of three, each has a replica of everything."""
    broker_links: bool = False
    """Whether brokers reach each other by links that can be cut."""
    rate: int = 100
    """Events a second of the logical stream."""
    within: float = 10
    """Within so many seconds the output's stable follows the replicas' (K5); 0: not checked."""
    session_seconds: Annotated[float, msgspec.Meta(gt=0)] = 2
    """After so long a worker that does not answer is considered dead."""
    policy: dict[str, str] = {}
    guards: dict[str, Any] = {}
    traces: list[InjectedFault] = []
    """The traces that the faults must leave in the service (K8)."""
    merger: list[str] = []
    """A Python module and its arguments, to merge in place of `lmerge run` (`merging`)."""
    patience: float = 60
    """Timeout for the output, in seconds."""


def plan_of(configuration: Mapping[str, Any]) -> DrillPlan:
    """The plan of a configuration; numbers may be text, as in environment variables.

    Raises:
        Refused: it has an unknown field, or an invalid value.
    """
    try:
        plan = msgspec.convert(dict(configuration), DrillPlan, strict=False)
    except msgspec.ValidationError as error:
        raise Refused(f"configuration: {error}") from None
    if plan.workers > 2 * plan.partitions:  # a task has a leader and a standby
        raise Refused(
            f"configuration: of {plan.workers} workers only {2 * plan.partitions} would have a "
            f"task: more partitions, or fewer workers"
        )
    if plan.broker_links and plan.nodes == 1:
        raise Refused("configuration: broker_links: one broker has no links to others: nodes: 3")
    if plan.plans and {*plan.plans} != {*plan.replicas}:
        raise Refused(
            f"configuration: plans: {', '.join(plan.plans)} have plans of the query, and "
            f"{', '.join(plan.replicas)} are the replicas"
        )
    if plan.plans and any(manner != FaultProfile() for manner in plan.replicas.values()):
        raise Refused("configuration: a replica that runs a query has no manner: leave it out")
    return plan
