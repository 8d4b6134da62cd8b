"""`lmerge present`: one logical stream into many physical ones."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import typer

from lmerge_service.cli.streams import check_files, label, reading, watched
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

_WHAT = "The ends and revisions of an event (fractions are of all events)"
_WHEN = "When it is published (times are in the unit of the stream)"
_STABLES = "Stables"
_LIES = "Lies, for testing: the result is wrong on purpose"


def _with_default(name: str, text: str) -> str:
    return f"{text} [default: {getattr(_USUAL, name)}]"


def _is_fraction(value: float | None) -> float | None:
    if value is not None and not 0 <= value <= 1:
        raise typer.BadParameter(f"{value:g} is not a fraction between 0 and 1")
    return value


def _fraction(name: str, text: str, panel: str) -> Any:
    return typer.Option(
        metavar="FRACTION",
        callback=_is_fraction,
        help=_with_default(name, text),
        rich_help_panel=panel,
    )


def _amount(text: str, panel: str, least: int = 0) -> Any:
    return typer.Option(min=least, metavar="N", help=text, rich_help_panel=panel)


def present(
    output: Annotated[
        str,
        typer.Option(
            "--output", "-o", metavar="FOLDER", help="Where to write; - is stdout, for one stream."
        ),
    ],
    source: Annotated[
        str | None,
        typer.Argument(metavar="FILE", help="Inserts of a logical stream; - is stdin."),
    ] = None,
    months: Annotated[
        str | None,
        typer.Option(
            "--flights",
            metavar="MONTHS",
            help="Instead of FILE, the flights that left New York in 2013: 1 or 1,2 or year.",
        ),
    ] = None,
    n: Annotated[
        int, typer.Option("-n", min=1, max=100, metavar="N", help="How many presentations.")
    ] = 1,
    seed: Annotated[
        int, typer.Option(metavar="N", help="Equal seeds give equal presentations.")
    ] = 1,
    preset: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="Begin from the replicas of the demo, in turn: A (ordered, revises late), "
            "B (eager, with provisional ends and phantoms), C (disordered), or A,B,C.",
        ),
    ] = None,
    logical: Annotated[
        bool,
        typer.Option("--logical", help="Also write the logical stream itself, logical.ndjson."),
    ] = False,
    told: Annotated[
        Literal["all", "first", "final"] | None,
        typer.Option(
            metavar="ENDS",
            help=_with_default(
                "told", "All ends, the first and final one (first), or the final one."
            ),
            rich_help_panel=_WHAT,
        ),
    ] = None,
    provisional: Annotated[
        float | None, _fraction("provisional", "Published with made-up ends first.", _WHAT)
    ] = None,
    revisions: Annotated[
        int | None, _amount(_with_default("revisions", "Made-up ends at the most."), _WHAT, 1)
    ] = None,
    spread: Annotated[
        int | None,
        _amount(
            "How far these lie below or above the final end. [default: an event's usual length]",
            _WHAT,
            1,
        ),
    ] = None,
    endless: Annotated[
        float | None, _fraction("endless", "Of the made-up ends, those at infinity.", _WHAT)
    ] = None,
    reinserted: Annotated[
        float | None, _fraction("reinserted", "Inserted, removed, and inserted again.", _WHAT)
    ] = None,
    phantoms: Annotated[
        float | None, _fraction("phantoms", "Further events, which are later removed.", _WHAT)
    ] = None,
    doubled: Annotated[
        float | None, _fraction("doubled", "There twice for a while (case R4 only).", _WHAT)
    ] = None,
    lead: Annotated[
        int | None, _amount(_with_default("lead", "Inserts come so long before the start."), _WHEN)
    ] = None,
    pace: Annotated[
        Literal["eager", "late", "anytime"] | None,
        typer.Option(
            metavar="PACE",
            help=_with_default("pace", "Revisions come eager, late or anytime."),
            rich_help_panel=_WHEN,
        ),
    ] = None,
    disorder: Annotated[
        float | None, _fraction("disorder", "Elements that are delayed.", _WHEN)
    ] = None,
    displacement: Annotated[
        int | None,
        _amount("By how long at the most. [default: an event's usual length]", _WHEN, 1),
    ] = None,
    restart_at: Annotated[
        int | None,
        _amount("Begin again after so many elements, as a restarted replica does.", _WHEN),
    ] = None,
    stable_every: Annotated[
        int | None, _amount(_with_default("stable_every", "One after so many elements."), _STABLES)
    ] = None,
    stable_probability: Annotated[
        float | None, _fraction("stable_probability", "One after an element by chance.", _STABLES)
    ] = None,
    stable_lag: Annotated[
        int | None,
        _amount(_with_default("stable_lag", "How long it stays behind what is certain."), _STABLES),
    ] = None,
    repeated_stables: Annotated[
        float | None, _fraction("repeated_stables", "Repeat the last when none is due.", _STABLES)
    ] = None,
    closed: Annotated[
        bool | None,
        typer.Option(
            "--closed/--open",
            help="End with stable(infinity), or not. [default: closed]",
            rich_help_panel=_STABLES,
        ),
    ] = None,
    lies: Annotated[
        list[str] | None,
        typer.Option(
            "--lie",
            metavar="KIND=FRACTION",
            help=f"Make this fraction of elements wrong; kinds: {', '.join(KINDS)}. "
            "May be given several times.",
            rich_help_panel=_LIES,
        ),
    ] = None,
    lie_by: Annotated[int, _amount("How wrong times are at the most.", _LIES, 1)] = 10,
) -> None:
    """Present one stream of events in N physically different ways that mean the same.

    Each goes to a file 0.ndjson, 1.ndjson, … of the folder, or is named by its preset. Equal
    arguments give equal files.

    Example: `lmerge present --flights 1 --preset A,B,C -n 3 -o jan --logical`

    Example: `lmerge present jan/logical.ndjson -n 2 --phantoms 0.1 -o out`
    """
    asked = {
        name: value
        for name, value in locals().items()
        if name in Variation.__dataclass_fields__ and value is not None
    }
    if output == "-" and (n > 1 or logical):
        raise ConfigurationError("standard output takes one stream: -n 1, without --logical")
    distortion = _lies(lies or [], lie_by)
    named = _variations(preset, n)
    _check_folder(source, output, [*dict(named), *(["logical"] if logical else [])])
    lives = _lives(source, months)
    if preset is None:
        usual = _usual_length(lives)
        asked = {"spread": usual, "displacement": usual} | asked
    for number, (name, variation) in enumerate(named):
        stream = present_lives(lives, replace(variation, **asked), f"{seed}/{number}")
        if restart_at is not None:
            stream = restart(list(stream), restart_at)
        if distortion is not None:
            stream = lie(stream, distortion, f"{seed}/{number}")
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
            kinds = ", ".join(KINDS)
            raise ConfigurationError(
                f"--lie takes KIND=FRACTION, as in drop=0.01, not {text!r}; kinds: {kinds}"
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
