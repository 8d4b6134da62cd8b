"""The merge over element files and pipes: one operator, n readers taken in a stated interleaving.

Theory
    The interleaving stands in for the speeds of the replicas. Which one it is changes what the
    output emits when, and never what it means:

    >>> for name in ("round-robin", "random:1", "sequential"):
    ...     streams = [enumerate("abc", 1), enumerate("xy", 1)]
    ...     print(*(element for _, _, element in interleaving(name)(streams)))
    a x b y c
    a x y b c
    a b c x y

    round-robin: all are equally fast. random: a seeded draw for each element. sequential: the
    first has sent everything before the second begins; all but the first are laggards.

    With `normalise` each input is brought to its canonical form (`core.normaliser`) on the way to
    the operator; whose turn it is goes by the elements that are read.

    The native engine (`core.engine`) takes the turns itself (`merge_batches`), of inputs that come
    in batches of its own; the output and the report are the same.

Cost
    About 1.5 µs an element, besides reading and writing, by the engine 0.2. Memory is the
    operator's and the readers', whatever the size of the files.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias, cast

from lmerge_service.core import Breach, Case, Input, LMerge, Policy, lmerge
from lmerge_service.elements import INFINITY, Element
from lmerge_service.errors import ConfigurationError
from lmerge_service.merge.operator_input import OperatorInput

if TYPE_CHECKING:
    from lmerge_engine import Batch, Turns

    from lmerge_service.core.native import NativeLMR3

__all__ = (
    "InputReport",
    "Interleaving",
    "LocatedBreach",
    "MergeReport",
    "OutputReport",
    "interleaving",
    "merge_batches",
    "merge_streams",
)

Stream: TypeAlias = Iterator[tuple[int, Element]]
"""(line, element) in order."""

_KEPT_BREACHES = 100
_DRAWN_AT_ONCE: Final = 4_096


@dataclass(frozen=True, slots=True)
class Interleaving:
    """An order in which streams are merged."""

    name: str
    """round-robin, sequential or random."""
    seed: int = 0

    def __call__(self, streams: Sequence[Stream]) -> Iterator[tuple[int, int, Element]]:
        """Takes streams to (stream number, line, element) in this order."""
        if self.name == "random":
            return _random(streams, self.draws())
        return (_round_robin if self.name == "round-robin" else _sequential)(streams)

    def draws(self) -> Callable[[], float]:
        """What draws whose turn it is, if that is random: of all draws the one that no version of
        Python changes."""
        return random.Random(self.seed).random


_ROUND_ROBIN: Final = Interleaving("round-robin")


def interleaving(text: str) -> Interleaving:
    """The interleaving that an option names: round-robin, random:SEED or sequential.

    Raises:
        ConfigurationError: there is none of that name.
    """
    name, colon, seed = text.partition(":")
    if name in ("round-robin", "sequential") and not colon:
        return Interleaving(name)
    if name == "random" and _is_integer(seed):
        return Interleaving(name, int(seed))
    raise ConfigurationError(
        f"no interleaving {text!r}: choose round-robin, random:SEED (an integer) or sequential"
    )


def _is_integer(text: str) -> bool:
    return text.isascii() and text.removeprefix("-").isdigit()


def _round_robin(streams: Sequence[Stream]) -> Iterator[tuple[int, int, Element]]:
    live = list(enumerate(streams))
    while live:
        for turn in tuple(live):
            number, stream = turn
            for line, element in stream:
                yield number, line, element
                break
            else:
                live.remove(turn)


def _sequential(streams: Sequence[Stream]) -> Iterator[tuple[int, int, Element]]:
    for number, stream in enumerate(streams):
        for line, element in stream:
            yield number, line, element


def _random(
    streams: Sequence[Stream], draw: Callable[[], float]
) -> Iterator[tuple[int, int, Element]]:
    live = list(enumerate(streams))
    while live:
        place = int(draw() * len(live))
        number, stream = live[place]
        for line, element in stream:
            yield number, line, element
            break
        else:
            del live[place]


@dataclass(frozen=True, slots=True)
class InputReport:
    """What one input sent, or what its canonical form did; `breaches` counts by kind what it did
    wrong."""

    name: str
    inserts: int
    adjusts: int
    stables: int
    delivered_first: int
    late: int
    breaches: dict[str, int]


@dataclass(frozen=True, slots=True)
class OutputReport:
    """What the output emitted, and where it stands at the end."""

    inserts: int
    adjusts: int
    removals: int
    """Adjusts that removed an event; counted in `adjusts` as well."""
    stables: int
    stable: int
    """The last one; START when there was none."""
    complete: bool
    """It has ended, with stable(INFINITY)."""
    leader_switches: int
    live_events: int
    """Not fully frozen when the inputs ended: 0 when the output is complete."""


@dataclass(frozen=True, slots=True)
class LocatedBreach:
    """A breach and the file:line at which it was found."""

    where: str
    breach: Breach


@dataclass(frozen=True, slots=True)
class MergeReport:
    """What a merge of files read, wrote and found."""

    case: Case
    elements: int
    """How many were read."""
    inputs: list[InputReport]
    output: OutputReport
    found: list[LocatedBreach]
    """The first 100 breaches."""

    @property
    def breaches(self) -> int:
        """How many there were in all."""
        return sum(sum(each.breaches.values()) for each in self.inputs)


def merge_streams(
    names: Sequence[str],
    streams: Sequence[Stream],
    write: Callable[[Element], None],
    *,
    case: Case = Case.R3,
    policy: Policy = Policy(),
    order: Interleaving = _ROUND_ROBIN,
    normalise: bool = False,
) -> MergeReport:
    """Merges `streams`, named by `names`, and hands each output element to `write`.

    A name that is given several times gets a number in the report: "a", "a (2)". With `normalise`
    inputs need only be the same at every instant, cut into whatever intervals.

    Raises:
        ConfigurationError: `normalise` in a case without revisions, or a quorum that so
            few streams cannot make.
    """
    _check_quorum(policy, streams)
    if normalise and case not in (Case.R3, Case.R4):
        raise ConfigurationError(
            f"normalising needs case R3 or R4, not {case}: the canonical form is revised"
        )
    merge = lmerge(case, policy)
    inputs = _distinct(names)
    steps = [OperatorInput(merge, name, normalise=normalise) for name in inputs]
    sources = list(merge.inputs.values())
    found: list[LocatedBreach] = []
    read = 0
    for number, line, element in order(streams):
        read += 1
        for each in steps[number].process_one(element):
            write(each)
        # A breach is always that of the input of this element, since all are joined.
        if sources[number].breaches and (breaches := merge.breaches()):
            where = f"{names[number]}:{line}"
            room = _KEPT_BREACHES - len(found)
            found += [LocatedBreach(where, breach) for breach in breaches[:room]]
    return _report(merge, read, found)


def merge_batches(
    names: Sequence[str],
    streams: Sequence[Iterator["Batch"]],
    write: Callable[["Batch"], None],
    *,
    policy: Policy = Policy(),
    order: Interleaving = _ROUND_ROBIN,
) -> MergeReport:
    """As `merge_streams`, by the native engine, which has to be there and know the policy, in case
    R3: of streams in its batches, whose elements are numbered from 1.

    Raises:
        ConfigurationError: a quorum that so few streams cannot make.
    """
    _check_quorum(policy, streams)
    merge = cast("NativeLMR3", lmerge(Case.R3, policy, engine="native"))
    for name in _distinct(names):
        merge.attach(name)
    sources = list(merge.inputs.values())
    found: list[LocatedBreach] = []
    turns, draw, out = merge.turns(order.name), order.draws(), merge.empty()
    while True:
        why, number = merge.take_turns(turns, out)
        if why == "undrawn":
            turns.draw([draw() for _ in range(_DRAWN_AT_ONCE)])
        elif why == "breached":
            if sources[number].breaches and (breaches := merge.breaches()):
                where = f"{names[number]}:{turns.taken(number)}"
                room = _KEPT_BREACHES - len(found)
                found += [LocatedBreach(where, breach) for breach in breaches[:room]]
        else:
            write(out)
            out = merge.empty()
            if why == "ended":
                break
            if why == "empty":
                _replenish(turns, number, streams[number])
    read = sum(turns.taken(number) for number in range(len(streams)))
    return _report(merge, read, found)


def _replenish(turns: "Turns", number: int, stream: Iterator["Batch"]) -> None:
    batch = next(stream, None)
    if batch is None:
        turns.end(number)
    else:
        turns.give(number, batch)


def _check_quorum(policy: Policy, streams: Sequence[object]) -> None:
    try:
        policy.check_inputs(len(streams))
    except ValueError as error:
        raise ConfigurationError(str(error)) from None


def _report(merge: LMerge, read: int, found: list[LocatedBreach]) -> MergeReport:
    inputs = [_of_input(source) for source in merge.inputs.values()]
    return MergeReport(merge.case, read, inputs, _of_output(merge), found)


def _distinct(names: Sequence[str]) -> list[str]:
    distinct: list[str] = []
    for name in names:
        candidate, copy = name, 1
        while candidate in distinct:
            copy += 1
            candidate = f"{name} ({copy})"
        distinct.append(candidate)
    return distinct


def _of_input(source: Input) -> InputReport:
    return InputReport(
        name=source.name,
        inserts=source.inserts,
        adjusts=source.adjusts,
        stables=source.stables_in,
        delivered_first=source.first,
        late=source.late,
        breaches={kind.value: count for kind, count in source.breaches.items()},
    )


def _of_output(merge: LMerge) -> OutputReport:
    return OutputReport(
        inserts=merge.stats().inserts,
        adjusts=merge.stats().adjusts,
        removals=merge.stats().removals,
        stables=merge.stats().stables,
        stable=merge.max_stable,
        complete=merge.max_stable == INFINITY,
        leader_switches=merge.stats().switches,
        live_events=len(merge),
    )
