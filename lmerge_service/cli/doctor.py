"""`lmerge doctor`: a real cluster against a topology."""

from typing import TYPE_CHECKING, Any

import typer

from lmerge_service.cli.options import Json, TopologyOptions, cluster_of
from lmerge_service.cli.words import printable, report

if TYPE_CHECKING:
    from lmerge_service.merge.doctor.diagnosis import Diagnosis

__all__ = ("doctor",)


def doctor(topology: TopologyOptions, as_json: Json = False) -> None:
    """Check a cluster against a topology: exit 0 if all is well, 1 with warnings, 2 with errors.

    It asks for brokers, topics, their settings and our rights, and for what the tasks have
    committed, and looks at the last records of each replica. Nothing is changed, and workers may
    run meanwhile. An error keeps a merge from starting, or has it lose something; a warning is
    about what will, under some fault. Each line ends with what to do.

    Example: `lmerge doctor topologies/flights.yaml`
    """
    import asyncio
    import time

    from lmerge_service.merge.doctor.diagnosis import Severity
    from lmerge_service.merge.doctor.examination import examine

    loaded = topology.load()

    async def run() -> "list[Diagnosis]":
        now = time.time_ns() // 1_000_000
        return [each async for each in examine(loaded, cluster_of(loaded), unix_ms=now)]

    found = asyncio.run(run())
    report([*map(_document, found)], *(printable(str(each)) for each in found), as_json=as_json)
    worst = {each.severity for each in found}
    raise typer.Exit(2 if Severity.ERROR in worst else int(Severity.WARNING in worst))


def _document(each: "Diagnosis") -> dict[str, Any]:
    return {
        "severity": each.severity.value,
        "subject": each.subject,
        "finding": each.finding,
        "remedy": each.remedy,
    }
