"""The merge over element files and pipes: one operator, n readers taken in a stated interleaving.

Memory is that of the operator, whatever the size of the files. The interleaving stands in for the
speeds of the replicas: round-robin (all equally fast), random (seeded), or sequential (the first
is done before the second begins; all but the first are laggards).
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from lmerge_service.core import Breach, Case, Operator, lmerge
from lmerge_service.elements import Element
from lmerge_service.errors import ConfigurationError

__all__ = ("Interleaving", "MergeReport", "interleaving", "merge_streams")

Stream: TypeAlias = Iterator[tuple[int, Element]]
"""(line, element) in order."""

Interleaving: TypeAlias = Callable[[Sequence[Stream]], Iterator[tuple[int, int, Element]]]
"""Takes streams to (stream number, line, element) in the order in which they are merged."""

_KEPT_BREACHES = 100


def interleaving(text: str) -> Interleaving:
    """The interleaving that an option names: round-robin, random:SEED or sequential.

    Raises:
        ConfigurationError: there is none of that name.
    """
    name, _, seed = text.partition(":")
    if name == "round-robin" and not seed:
        return _round_robin
    if name == "sequential" and not seed:
        return _sequential
    if name == "random" and seed.removeprefix("-").isdigit():
        return lambda streams: _random(streams, int(seed))
    raise ConfigurationError(
        f"no interleaving {text!r}: choose round-robin, random:SEED (an integer) or sequential"
    )


def _round_robin(streams: Sequence[Stream]) -> Iterator[tuple[int, int, Element]]:
    live = list(enumerate(streams))
    while live:
        still = []
        for number, stream in live:
            for line, element in stream:
                yield number, line, element
                still.append((number, stream))
                break
        live = still


def _sequential(streams: Sequence[Stream]) -> Iterator[tuple[int, int, Element]]:
    for number, stream in enumerate(streams):
        for line, element in stream:
            yield number, line, element


def _random(streams: Sequence[Stream], seed: int) -> Iterator[tuple[int, int, Element]]:
    choice = random.Random(seed)
    live = list(enumerate(streams))
    while live:
        place = choice.randrange(len(live))
        number, stream = live[place]
        for line, element in stream:
            yield number, line, element
            break
        else:
            del live[place]


@dataclass(slots=True)
class MergeReport:
    """What a merge of files read, wrote and found."""

    case: str
    inputs: list[dict[str, Any]] = field(default_factory=list)
    output: dict[str, Any] = field(default_factory=dict)
    breaches: list[tuple[str, Breach]] = field(default_factory=list)
    """The first 100, each with the file:line (or input) it was found at."""
    breaches_total: int = 0


def merge_streams(
    names: Sequence[str],
    streams: Sequence[Stream],
    write: Callable[[Element], None],
    *,
    case: Case = Case.R3,
    order: Interleaving = _round_robin,
) -> MergeReport:
    """Merges `streams`, named by `names`, and hands each output element to `write`."""
    merge, report = lmerge(case), MergeReport(case)
    for number in range(len(names)):
        merge.attach(str(number))
    for number, line, element in order(streams):
        for said in merge.process(str(number), element):
            write(said)
        if found := merge.breaches():
            _note(report, f"{names[number]}:{line}", found)
    _count(report, merge, names)
    return report


def _note(report: MergeReport, where: str, found: Sequence[Breach]) -> None:
    report.breaches_total += len(found)
    room = _KEPT_BREACHES - len(report.breaches)
    report.breaches += [(where, breach) for breach in found[:room]]


def _count(report: MergeReport, merge: Operator, names: Sequence[str]) -> None:
    for name, source in zip(names, merge.inputs.values(), strict=True):
        report.inputs.append(
            {
                "name": name,
                "inserts": source.inserts,
                "adjusts": source.adjusts,
                "stables": source.stables_in,
                "delivered_first": source.first,
                "late": source.late,
                "breaches": {kind.value: count for kind, count in source.breaches.items()},
            }
        )
    stats = merge.stats
    report.output = {
        "inserts": stats.inserts,
        "adjusts": stats.adjusts,
        "removals": stats.removals,
        "stables": stats.stables,
        "leader_switches": stats.switches,
        "live_events": len(merge),
    }
