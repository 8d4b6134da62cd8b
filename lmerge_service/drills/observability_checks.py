"""A check of what the service reports: faults (K8).

Theory
    A fault must be observable. So each has three traces: a metric that counts it and names the
    replica, a log line with its place (partition, offset), and a reason in the health document. A
    missing trace is named.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from lmerge_service.drills.verdicts import CheckResult

__all__ = ("Capture", "InjectedFault", "k8")


@dataclass(frozen=True, slots=True)
class InjectedFault:
    """A fault that was injected, and the traces it has to leave."""

    replica: str
    metric: str
    """The counter's name as scraped, for instance lmerge_replica_dead_letters_total."""
    event: str
    """The log line's event."""
    reason: str
    """What a reason of the health document contains."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Further labels of the metric."""
    partition: int | None = None
    offset: int | None = None
    """Where it occurred; None where it has no place, such as silence."""


@dataclass(frozen=True, slots=True)
class Capture:
    """The output of a worker after the fault, unparsed."""

    status: Mapping[str, Any]
    metrics: str
    log: str
    """JSON lines; others are passed over."""


def k8(faults: Sequence[InjectedFault], capture: Capture | None) -> CheckResult:
    """Each fault shows as metric, log and health, with replica, partition and offset."""
    if capture is None:
        return CheckResult.of("K8", [], ["nothing that the service showed was captured"])
    lines = list(_lines(capture.log))
    wrong = [
        f"{fault.event} of {fault.replica}: {missing}"
        for fault in faults
        for missing in (
            *_in_metrics(fault, capture.metrics),
            *_in_log(fault, lines),
            *_in_health(fault, capture.status),
        )
    ]
    return CheckResult.of("K8", wrong)


def _in_metrics(fault: InjectedFault, text: str) -> Iterator[str]:
    labels = {"replica": fault.replica, **fault.labels}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == fault.metric and labels.items() <= sample.labels.items():
                if sample.value <= 0:
                    yield f"metric {fault.metric} counts {sample.value:g}"
                return
    yield f"no metric {fault.metric} with {labels}"


def _in_log(fault: InjectedFault, lines: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    about = [
        line
        for line in lines
        if line.get("event") == fault.event and line.get("replica") == fault.replica
    ]
    if not about:
        yield "no log line"
        return
    place = {"partition": fault.partition, "offset": fault.offset}
    known = {name: value for name, value in place.items() if value is not None}
    if not any(known.items() <= line.items() for line in about):
        yield f"no log line with {known}"


def _in_health(fault: InjectedFault, status: Mapping[str, Any]) -> Iterator[str]:
    if status.get("health") != "degraded":
        yield f"health is {status.get('health')}"
    elif not any(
        fault.reason in reason and fault.replica in reason for reason in status.get("reasons", ())
    ):
        yield f"no reason in the health document contains {fault.reason!r}"


def _lines(log: str) -> Iterator[Mapping[str, Any]]:
    for line in log.splitlines():
        try:
            document = json.loads(line)
        except ValueError:
            continue
        if isinstance(document, dict):
            yield document
