"""The drills with another program as the merger: what LMerge does that a deduplicating consumer
does not.

Method
    Each drill is played three times, on the same faults and by the same judge: with `lmerge run`,
    and with `benchmarks.dedup`, which emits stable as soon as `first` or only when `all` do. Steady
    state is judged after the faults only, so that a merger that is wrong before them is tried all
    the same. Where a merger has nothing to show, nothing is asked: no traces (K8), no decisions.

    An output that does not come to its end within the patience of the drill, half as much again
    as its bound and 20 s at least, *stands still*; the hole is then as long as somebody waited.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any, Final

import msgspec

from benchmarks.fleet import log_line
from lmerge_service.drills.drills import STANDARD, experiment, run
from lmerge_service.drills.report import DrillResult
from lmerge_service.drills.verdicts import WrongEvents

__all__ = ("CALM", "DRILLS", "MERGERS", "Verdict", "experiment_with", "play", "table")

CALM: Final = "nothing fails"
_NOT_PLAYED: Final = frozenset(
    {"control-lost", "control-conflicts", "cutover-interrupted", "damaged-checkpoint"}
)
"""About decisions, of which the other program has none."""
DRILLS: Final = (
    CALM,
    *(name for name in STANDARD if name not in _NOT_PLAYED and not name.startswith("nodes-")),
)
"""What brokers do for each other they do for any program."""
MERGERS: Final[Mapping[str, Sequence[str]]] = {
    "LMerge": (),
    "dedup, first": ("benchmarks.dedup", "first"),
    "dedup, all": ("benchmarks.dedup", "all"),
}
_LEAST_PATIENCE: Final = 20.0
_CALM_SECONDS: Final = 6
_ANY: Final[Mapping[str, Any]] = {
    "verdict": ["valid", "invalid", "unknown"],
    "longest_hole": [0, 86_400],
}


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a merger in a drill."""

    drill: str
    merger: str
    broken: list[str]
    """The checks that found something."""
    unclear: list[str]
    tally: WrongEvents
    hole: float
    """Seconds."""
    ended: bool
    """The output has come to its end."""
    why: list[str]

    @property
    def kept(self) -> bool:
        return self.ended and not self.broken and not self.unclear

    def __str__(self) -> str:
        if self.kept:
            return f"kept; {self.hole:.1f} s"
        counts = [f"{n} {what}" for what, n in msgspec.to_builtins(self.tally).items() if n]
        parts = [" ".join(self.broken), *counts]
        parts += [f"{' '.join(self.unclear)} unknown"] if self.unclear else []
        parts += [] if self.ended else ["stands still"]
        return f"**{', '.join(filter(None, parts))}**; {self.hole:.1f} s"


def play(drills: Sequence[str], mergers: Sequence[str]) -> Iterator[Verdict]:
    """Each drill with each merger.

    Raises:
        LMergeError: a drill could not begin.
    """
    for drill in drills:
        for merger in mergers:
            began = time.monotonic()
            log_line(f"{drill}: {merger}")
            result = run(
                experiment_with(drill, MERGERS[merger]), lambda line: log_line(f"  {line}")
            )
            verdict = _verdict(drill, merger, result)
            log_line(f"{drill}: {merger}: {verdict} ({time.monotonic() - began:.0f} s in all)")
            yield verdict


def experiment_with(drill: str, merger: Sequence[str]) -> dict[str, Any]:
    """The experiment, for this merger."""
    found = deepcopy(experiment("leader-dies" if drill == CALM else drill))
    if drill == CALM:
        *_, finish = found["method"]
        found["method"] = [finish | {"pauses": {"before": _CALM_SECONDS}}]
    probes = found["steady-state-hypothesis"]["probes"]
    bound = max(each["tolerance"][1] for each in probes if _of(each) == "longest_hole")
    settings = found["configuration"]
    settings["patience"] = max(_LEAST_PATIENCE, 1.5 * bound)
    if merger:
        settings["merger"] = list(merger)
        for name in ("traces", "policy", "guards"):
            settings.pop(name, None)
    for probe in probes:
        probe["tolerance"] = _ANY[_of(probe)]
    return found


def _of(probe: Mapping[str, Any]) -> str:
    return str(probe["provider"]["func"])


def _verdict(drill: str, merger: str, result: DrillResult) -> Verdict:
    judged = result.judged
    findings = [] if judged is None else judged.findings
    return Verdict(
        drill=drill,
        merger=merger,
        broken=[each["check"] for each in findings if each["outcome"] == "invalid"],
        unclear=[each["check"] for each in findings if each["outcome"] == "unknown"],
        tally=(judged and judged.tally) or WrongEvents(),
        hole=0.0 if judged is None else judged.hole.seconds,
        ended=result.steps[-1]["status"] == "succeeded",  # the replicas publish the rest, and end
        why=result.why,
    )


def table(verdicts: Sequence[Verdict]) -> str:
    """In Markdown, a drill a row."""
    mergers = list(dict.fromkeys(each.merger for each in verdicts))
    found = {(each.drill, each.merger): str(each) for each in verdicts}
    lines = [_row(["drill", *mergers]), f"|{'---|' * (len(mergers) + 1)}"]
    for drill in dict.fromkeys(each.drill for each in verdicts):
        name = drill if drill == CALM else f"`{drill}`"
        lines.append(_row([name, *(found.get((drill, merger), "") for merger in mergers)]))
    return "\n".join(lines)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
