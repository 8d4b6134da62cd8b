"""`lmerge present`: one logical stream into many physical ones."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import typer

from lmerge_service.cli.options import Seed, argument, flag, option
from lmerge_service.cli.streams import check_files, label, reading, watched
from lmerge_service.cli.variations import WHEN, given_of, with_variation
from lmerge_service.elements import INFINITY, Adjust, Element, Insert, Stable
from lmerge_service.errors import ConfigurationError
from lmerge_service.formats.ndjson import ElementWriter
from lmerge_service.tdb import Event
from lmerge_service.workloads.flights import MONTHS, VARIATIONS, flights
from lmerge_service.workloads.joining import restart
from lmerge_service.workloads.lies import KINDS, Lie, lie
from lmerge_service.workloads.lifetime import Life, lives_of
from lmerge_service.workloads.presentation import Variation
from lmerge_service.workloads.presentation import present as present_lives

__all__ = ("months_of", "present")

_USUAL: Final = Variation(provisional=0.2, disorder=0.2, stable_every=100)
"""Without a preset; `spread` and `displacement` are then as long as the events are."""

_KINDS: Final = {Insert: "inserts", Adjust: "adjusts", Stable: "stables"}
_LIE_KINDS: Final = ", ".join(KINDS)
_LIES: Final = "Lies, for testing: the result is wrong on purpose"


@with_variation(_USUAL)
def present(
    output: str = option(
        "FOLDER", "Where to write; - is stdout, for one stream.", "--output", "-o"
    ),
    source: str | None = argument("FILE", "Inserts of a logical stream; - is stdin.", default=None),
    months: str | None = option(
        "MONTHS",
        "Instead of FILE, the flights that left New York in 2013: 1 or 1,2 or year.",
        "--flights",
        default=None,
    ),
    n: int = option("N", "How many presentations.", "-n", min=1, max=100, default=1),
    seed: Seed = 1,
    preset: str | None = option(
        "NAMES",
        "Begin from the replicas of the demo, in turn: A (ordered, revises late), "
        "B (eager, with provisional ends and phantoms), C (disordered), or A,B,C.",
        default=None,
    ),
    logical: bool = flag("Also write the logical stream itself, logical.ndjson.", "--logical"),
    restart_at: int | None = option(
        "N",
        "Begin again after so many elements, as a restarted replica does.",
        min=0,
        panel=WHEN,
        default=None,
    ),
    lies: list[str] | None = option(
        "KIND=FRACTION",
        f"Make this fraction of elements wrong; kinds: {_LIE_KINDS}. May be given several times.",
        "--lie",
        panel=_LIES,
        default=None,
    ),
    lie_by: int = option("N", "How wrong times are at the most.", min=1, panel=_LIES, default=10),
    **variation: Any,
) -> None:
    """Present one stream of events in N physically different ways that mean the same.

    Each goes to a file 0.ndjson, 1.ndjson, … of the folder, or is named by its preset. Equal
    arguments give equal files.

    Example: `lmerge present --flights 1 --preset A,B,C -n 3 -o jan --logical`

    Example: `lmerge present jan/logical.ndjson -n 2 --phantoms 0.1 -o out`
    """
    if output == "-" and (n > 1 or logical):
        raise ConfigurationError("standard output takes one stream: -n 1, without --logical")
    distortion = _lies(lies or [], lie_by)
    named = _variations(preset, n)
    _check_folder(source, output, [*dict(named), *(["logical"] if logical else [])])
    lives = _lives(source, months)
    asked = {name: value for name, value in variation.items() if value is not None}
    if preset is None:
        asked = given_of(variation, _usual_length(lives))
    for number, (name, varied) in enumerate(named):
        own_seed = f"{seed}/{number}"
        stream = present_lives(lives, replace(varied, **asked), own_seed)
        if restart_at is not None:
            stream = restart(list(stream), restart_at)
        if distortion is not None:
            stream = lie(stream, distortion, own_seed)
        _write(output, name, stream)
    if logical:
        events = (Insert(each.payload, each.vs, each.ve) for each in lives if each.is_event)
        _write(output, "logical", [*events, Stable(INFINITY)])


def _lies(options: Sequence[str], by: int) -> Lie | None:
    fractions = {}
    for text in options:
        kind, _, fraction = text.partition("=")
        try:
            fractions[kind] = float(fraction)
        except ValueError:
            fractions[kind] = -1.0
        if kind not in KINDS or not 0 <= fractions[kind] <= 1:
            raise ConfigurationError(
                f"--lie takes KIND=FRACTION, as in drop=0.01, not {text!r}; kinds: {_LIE_KINDS}"
            )
    return Lie(**fractions, by=by) if fractions else None


def _variations(preset: str | None, n: int) -> list[tuple[str, Variation]]:
    if preset is None:
        return [(str(number), _USUAL) for number in range(n)]
    names = [name.strip().upper() for name in preset.split(",")]
    if unknown := [name for name in names if name not in VARIATIONS]:
        raise ConfigurationError(f"no preset {unknown[0]!r}: choose of A, B and C, as in A,B,C")
    turns = [(names[number % len(names)], number // len(names)) for number in range(n)]
    return [(f"{name}{turn or ''}".lower(), VARIATIONS[name]) for name, turn in turns]


def _check_folder(source: str | None, output: str, names: Iterable[str]) -> None:
    """The folder can be written, and nothing in it that is to be written is the source."""
    inputs = [] if source is None else [source]
    check_files(inputs)
    folder = Path(output)
    if output == "-":
        check_files(inputs, output)
    elif folder.is_dir():
        for name in names:
            check_files(inputs, str(folder / f"{name}.ndjson"))
    elif folder.exists():
        raise ConfigurationError(f"cannot write into {label(output)}: it is a file, not a folder")


def _lives(source: str | None, months: str | None) -> Sequence[Life]:
    if months is not None and source is None:
        return list(flights(months_of(months)))
    if source is None or months is not None:
        raise ConfigurationError("give either FILE or --flights MONTHS")
    with reading([source]) as (stream,):
        events = sorted(_events(label(source), stream), key=lambda event: event.vs)
    return lives_of(events)


def _events(source: str, elements: Iterable[tuple[int, Element]]) -> Iterator[Event]:
    for line, element in elements:
        if isinstance(element, Insert):
            yield Event(element.payload, element.vs, element.ve)
        elif not isinstance(element, Stable):
            raise ConfigurationError(
                f"{source}:{line}: an adjust, but the logical stream has only inserts "
                "(stables are ignored)"
            )


def months_of(text: str) -> tuple[int, ...]:
    """What `--flights` takes.

    Raises:
        ConfigurationError: it is something else.
    """
    if text == "year":
        return MONTHS
    parts = text.split(",")
    if not all(part.isascii() and part.isdigit() and int(part) in MONTHS for part in parts):
        raise ConfigurationError(f"--flights takes months from 1 to 12, as 1,2, or year: {text!r}")
    return tuple(map(int, parts))


def _usual_length(lives: Iterable[Life]) -> int:
    """The median, of those that end."""
    lengths = sorted(each.ve - each.vs for each in lives if each.is_event and each.ve < INFINITY)
    return lengths[len(lengths) // 2] if lengths else 1


def _write(output: str, name: str, stream: Iterable[Element]) -> None:
    path = output
    if output != "-":
        path = str(Path(output) / f"{name}.ndjson")
        try:
            Path(output).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(f"cannot make {label(output)}: {error.strerror}") from None
    counts: Counter[type] = Counter()
    with ElementWriter(path) as writer:
        for element in watched(path, stream):
            writer.write(element)
            counts[type(element)] += 1
    counted = ", ".join(f"{counts[kind]:,} {word}" for kind, word in _KINDS.items())
    typer.echo(f"{'stdout' if path == '-' else label(path)}: {counted}", err=True)
