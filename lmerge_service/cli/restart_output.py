"""`lmerge restart-output`: has a merge begin a new incarnation of its output.

It asks no worker, since none can run where it is needed: the decision goes into the control log
itself, and whichever worker is started next carries it out.
"""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import typer

from lmerge_service.cli.options import Json, TopologyOptions, cluster_of, flag, option
from lmerge_service.cli.words import finite, point, printable, report, since
from lmerge_service.cli.workers import somebody
from lmerge_service.elements import INFINITY, START
from lmerge_service.errors import DecisionRefusedError, StateError

if TYPE_CHECKING:
    from lmerge_service.config.topology import Topology
    from lmerge_service.merge.decisions.ledger import Entry
    from lmerge_service.merge.output_restart import FormerPartition, RestartPlan

__all__ = ("restart_output",)

_STATED: Final = re.compile(r"([a-zA-Z0-9][a-zA-Z0-9._-]{0,99})=(beginning|-?\d{1,19})")


def restart_output(
    topology: TopologyOptions,
    correct_from: list[str] = option(
        "REPLICA=TIME",
        "From when on a replica is correct by its topic as it is now, where you know that better; "
        "TIME may be `beginning`. Once for each replica.",
        default=[],
        show_default=False,
    ),
    reason: str = option("TEXT", "Why, for people to read.", default=""),
    yes: bool = flag("Decide it; without, only what would be is shown.", "--yes"),
    force: bool = flag(
        "Also where a worker could go on from what there is, which is not even looked at.",
        "--force",
    ),
    as_json: Json = False,
) -> None:
    """Have a merge whose state is lost go on, as a new incarnation of its output.

    A worker ends with 4 when it can use no snapshot and the output has lost its beginning. This
    shows from when on the output can be correct, by what the replicas' topics have, and what is
    lost; with --yes it is decided, and workers that are started go on so. Consumers must take it
    for a replica that has started over: docs/operations/recovery.md.

    Example: `lmerge restart-output topologies/flights.yaml`
    """
    import asyncio

    stated = dict(map(_stated, correct_from))
    loaded = topology.load()
    plan, entry = asyncio.run(_restart(loaded, stated, reason, yes=yes, force=force))
    if entry is not None and entry.refusal is not None:
        raise DecisionRefusedError(f"{entry.refusal.reason} (version {entry.version})")
    report(_document(plan, entry), *_lines(plan, entry), as_json=as_json)
    if entry is None:
        plan.action(reason)  # what is missing is an error, and not only a line


def _stated(text: str) -> tuple[str, int]:
    found = _STATED.fullmatch(text)
    time = START if found is None or found[2] == "beginning" else int(found[2])
    if found is None or not START <= time < INFINITY:
        raise typer.BadParameter(f"--correct-from needs REPLICA=TIME, got {text!r}")
    return found[1], time


async def _restart(
    topology: "Topology", stated: dict[str, int], reason: str, *, yes: bool, force: bool
) -> "tuple[RestartPlan, Entry | None]":
    from lmerge_service.merge.decisions.records import decide
    from lmerge_service.merge.inspection import decided
    from lmerge_service.merge.output_restart import decide_in_log, lost_partitions, plan_restart

    cluster = cluster_of(topology)
    ledger = await decided(topology, cluster)
    plan = await plan_restart(topology, cluster, ledger, stated=stated)
    if not force:
        lost = {partition: why async for partition, why in lost_partitions(topology, cluster)}
        if not lost:
            raise StateError(
                "the state of every partition can be recovered: start a worker; --force restarts "
                "the output all the same"
            )
        if plan.is_decided_for(lost):
            raise StateError(
                f"incarnation {plan.decided} of the output is decided already (version "
                f"{ledger.output.since}): start a worker, which begins it"
            )
        reason = reason or next(iter(lost.values()))
    if not yes:
        return plan, None
    action = plan.action(reason)
    decision = decide(action, somebody(), expects=plan.version)
    return plan, await decide_in_log(topology, cluster, decision)


def _lines(plan: "RestartPlan", entry: "Entry | None") -> Iterator[str]:
    for each in plan.replicas:
        reach = each.correct_from
        known = "unknown" if reach is None else f"correct from {since(reach)}"
        yield printable(f"replica {each.replica}: {known} ({each.why})")
    for former in plan.partitions:
        yield f"partition {former.partition}: {_former(plan, former)}"
    if plan.correct_from is None:
        return
    yield f"incarnation {plan.incarnation}: correct from {since(plan.correct_from)}"
    if entry is None:
        yield "nothing is decided: --yes does it"
    else:
        yield f"version {entry.version}: decided (decision {entry.decision.id}); start the workers"


def _former(plan: "RestartPlan", former: "FormerPartition") -> str:
    where = "nothing shows how far it was stable"
    if former.stable is not None:
        where = f"stable at {point(former.stable)}"
    gap = plan.gap(former)
    lost = "nothing is lost" if gap is None else f"[{point(gap[0])}, {point(gap[1])}) is lost"
    if plan.correct_from is None:
        lost = "what is lost is not known"
    offsets = f"offsets {former.begins} to {former.ends}"
    return f"{offsets} of incarnation {former.incarnation}, {where}: {lost}"


def _document(plan: "RestartPlan", entry: "Entry | None") -> dict[str, Any]:
    from dataclasses import asdict

    document = asdict(plan)
    document["correct_from"] = None if plan.correct_from is None else finite(plan.correct_from)
    for each, former in zip(document["partitions"], plan.partitions, strict=True):
        each["gap"] = plan.gap(former)
        each["stable"] = None if former.stable is None else finite(former.stable)
    for each in document["replicas"]:
        each["is_known"] = each["correct_from"] is not None
        each["correct_from"] = finite(each["correct_from"]) if each["is_known"] else None
    decided = None if entry is None else {"id": entry.decision.id, "version": entry.version}
    return {**document, "decided": decided}
