"""The result of a check: valid, invalid or unknown, with evidence; the worst of several.

Theory
    A check is a function of a history. It returns *invalid* only with evidence, *unknown* when the
    history is not sufficient (a topic that has lost its beginning, a reference that the replicas do
    not agree on), else *valid*. The outcome of several checks is the worst of theirs:

    >>> worst([Outcome.VALID, Outcome.UNKNOWN])
    <Outcome.UNKNOWN: 'unknown'>
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

__all__ = ("CheckResult", "HistoryReport", "Outcome", "WrongEvents", "worst")

_SHOWN = 20


class Outcome(StrEnum):
    """From good to bad."""

    VALID = "valid"
    UNKNOWN = "unknown"
    INVALID = "invalid"


def worst(outcomes: Iterable[Outcome]) -> Outcome:
    """The worst of them; of none, valid."""
    order = list(Outcome)
    return max(outcomes, key=order.index, default=Outcome.VALID)


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check; at most 20 pieces of evidence, and how many there were."""

    check: str
    outcome: Outcome
    evidence: tuple[str, ...] = ()
    total: int = 0

    @classmethod
    def of(cls, check: str, wrong: Sequence[str], unclear: Sequence[str] = ()) -> "CheckResult":
        """Invalid if something is wrong, else unknown if something is unclear, else valid."""
        outcome = Outcome.INVALID if wrong else Outcome.UNKNOWN if unclear else Outcome.VALID
        evidence = (*wrong, *unclear)
        return cls(check, outcome, evidence[:_SHOWN], len(evidence))


@dataclass(frozen=True, slots=True)
class WrongEvents:
    """How many events are wrong, of those that the output has declared final."""

    lost: int = 0
    """They exist in the reference, and the output lacks them."""
    contradicted: int = 0
    """They have another end in the reference, or do not exist there."""
    doubled: int = 0


@dataclass(frozen=True, slots=True)
class HistoryReport:
    """All findings about one history."""

    findings: tuple[CheckResult, ...]

    @property
    def outcome(self) -> Outcome:
        return worst(finding.outcome for finding in self.findings)

    def __getitem__(self, check: str) -> CheckResult:
        for finding in self.findings:
            if finding.check == check:
                return finding
        raise KeyError(f"{check} was not asked of this history")

    def __str__(self) -> str:
        lines = [str(self.outcome)]
        for finding in self.findings:
            lines.append(f"{finding.check} {finding.outcome}")
            lines += [f"   {piece}" for piece in finding.evidence]
            if (more := finding.total - len(finding.evidence)) > 0:
                lines.append(f"   and {more:,} more")
        return "\n".join(lines)
