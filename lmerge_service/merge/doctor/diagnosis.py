"""What the doctor finds: one line a check, with what to do where something is wrong."""

from dataclasses import dataclass
from enum import StrEnum

__all__ = ("Diagnosis", "Severity", "counted", "fine", "warned", "wrong")


class Severity(StrEnum):
    """How bad it is; the values are shown, and never change."""

    OK = "ok"
    WARNING = "warning"
    """The merge works; under some fault, or at some time, it will not."""
    ERROR = "error"
    """The merge does not start, or loses something."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The outcome of one check."""

    severity: Severity
    subject: str
    """What it is about: Kafka, a topic, a replica."""
    finding: str
    remedy: str | None = None
    """What to do; None where all is well."""

    def __str__(self) -> str:
        remedy = "" if self.remedy is None else f"; {self.remedy}"
        return f"{self.severity:8} {self.subject}: {self.finding}{remedy}"


def fine(subject: str, finding: str) -> Diagnosis:
    """Nothing is to be done."""
    return Diagnosis(Severity.OK, subject, finding)


def warned(subject: str, finding: str, remedy: str) -> Diagnosis:
    """Something is to be done sooner or later."""
    return Diagnosis(Severity.WARNING, subject, finding, remedy)


def wrong(subject: str, finding: str, remedy: str) -> Diagnosis:
    """Something is to be done before the merge can be relied on."""
    return Diagnosis(Severity.ERROR, subject, finding, remedy)


def counted(number: int, what: str) -> str:
    """So many of something, in words.

    >>> counted(1, "partition"), counted(2, "broker")
    ('1 partition', '2 brokers')
    """
    return f"{number:,} {what}{'' if number == 1 else 's'}"
