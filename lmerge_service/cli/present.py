"""`lmerge present`: one logical stream into many physical ones."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from lmerge_service.cli.options import reading
from lmerge_service.elements import INFINITY, Element, Insert, Stable
from lmerge_service.errors import ConfigurationError
from lmerge_service.formats.ndjson import ElementWriter, read_elements
from lmerge_service.formats.wire import WireDecoder
from lmerge_service.present.flights import MONTHS, VARIATIONS, flights
from lmerge_service.present.joining import restart
from lmerge_service.present.lies import KINDS, Lie, lie
from lmerge_service.present.life import Life, lives_of
from lmerge_service.present.presentation import Variation
from lmerge_service.present.presentation import present as present_lives
from lmerge_service.tdb import Event

__all__ = ("present",)

_WHAT = "Which ends are told of an event"
_WHEN = "When elements are sent"
_STABLES = "Stables"
_LIES = "Lies, for testing: the stream is no longer legal or no longer the same"


def _fraction(text: str, panel: str) -> Any:
    return typer.Option(min=0.0, max=1.0, help=text, rich_help_panel=panel)


def _amount(text: str, panel: str, least: int = 0) -> Any:
    return typer.Option(min=least, help=text, rich_help_panel=panel)


def present(
    output: Annotated[
        str, typer.Option("--output", "-o", help="A folder, or - for one stream to stdout.")
    ],
    source: Annotated[
        str | None,
        typer.Argument(metavar="[FILE]", help="Inserts of a logical stream (ndjson); - is stdin."),
    ] = None,
    months: Annotated[
        str | None,
        typer.Option("--flights", help="Instead of FILE, flights of 2013: months as 1,2 or year."),
    ] = None,
    n: Annotated[int, typer.Option("-n", min=1, max=100, help="How many presentations.")] = 1,
    seed: Annotated[int, typer.Option(help="Equal seeds give equal presentations.")] = 1,
    preset: Annotated[
        str | None,
        typer.Option(help="Start from the flights' presets, in turn: A, B, C or A,B,C."),
    ] = None,
    logical: Annotated[
        bool, typer.Option(help="Also write the logical stream itself, as logical.ndjson.")
    ] = False,
    told: Annotated[
        Literal["all", "first", "final"] | None,
        typer.Option(help="All its ends, the first and the last, the last.", rich_help_panel=_WHAT),
    ] = None,
    provisional: Annotated[
        float | None, _fraction("Events with made-up ends first.", _WHAT)
    ] = None,
    revisions: Annotated[int | None, _amount("Made-up ends at most.", _WHAT, 1)] = None,
    spread: Annotated[
        int | None, _amount("How far those are below or above the final end.", _WHAT, 1)
    ] = None,
    endless: Annotated[float | None, _fraction("Of those, ends at infinity.", _WHAT)] = None,
    reinserted: Annotated[
        float | None, _fraction("Events inserted, removed and inserted again.", _WHAT)
    ] = None,
    phantoms: Annotated[
        float | None, _fraction("Further events per event, later removed.", _WHAT)
    ] = None,
    doubled: Annotated[
        float | None, _fraction("Events that appear twice for a while (case R4).", _WHAT)
    ] = None,
    lead: Annotated[int | None, _amount("Inserts are sent so long before vs.", _WHEN)] = None,
    pace: Annotated[
        Literal["eager", "late", "anytime"] | None,
        typer.Option(help="When revisions come.", rich_help_panel=_WHEN),
    ] = None,
    disorder: Annotated[float | None, _fraction("Elements that are delayed.", _WHEN)] = None,
    displacement: Annotated[
        int | None, _amount("By how much at the most, in time.", _WHEN, 1)
    ] = None,
    restart_at: Annotated[
        int | None, _amount("Say the first so many elements, then all again.", _WHEN)
    ] = None,
    stable_every: Annotated[int | None, _amount("One after so many elements.", _STABLES)] = None,
    stable_probability: Annotated[
        float | None, _fraction("One after an element with this probability.", _STABLES)
    ] = None,
    stable_lag: Annotated[
        int | None, _amount("How far it stays behind what is known.", _STABLES)
    ] = None,
    repeated_stables: Annotated[
        float | None, _fraction("Say the last again when none is due.", _STABLES)
    ] = None,
    closed: Annotated[
        bool | None,
        typer.Option(
            "--closed/--open", help="End with stable(infinity).", rich_help_panel=_STABLES
        ),
    ] = None,
    lies: Annotated[
        list[str] | None,
        typer.Option(
            "--lie",
            metavar="KIND=FRACTION",
            help=f"Tell so many elements wrongly; kinds: {', '.join(KINDS)}.",
            rich_help_panel=_LIES,
        ),
    ] = None,
    lie_by: Annotated[int, _amount("How much times are wrong at most.", _LIES, 1)] = 10,
) -> None:
    """Present one logical stream in n physically different, seeded ways, all equivalent.

    Writes NAME.ndjson files into a folder: 0.ndjson, 1.ndjson, … or named by preset.

    Examples: `lmerge present --flights 1 --preset A,B,C -n 3 -o january/ --logical` ·
    `lmerge present events.ndjson -n 4 --disorder 0.2 --displacement 60000 -o out/`
    """
    asked = {
        name: value
        for name, value in locals().items()
        if name in Variation.__dataclass_fields__ and value is not None
    }
    if output == "-" and (n > 1 or logical):
        raise ConfigurationError("standard output takes one stream: -n 1, without --logical")
    lives = _lives(source, months)
    told_wrongly = _lies(lies or [], lie_by)
    for number, (name, variation) in enumerate(_variations(preset, n)):
        stream = present_lives(lives, replace(variation, **asked), f"{seed}/{number}")
        if restart_at is not None:
            stream = restart(list(stream), restart_at)
        if told_wrongly is not None:
            stream = lie(stream, told_wrongly, f"{seed}/{number}")
        _write(output, name, stream)
    if logical:
        events = (Insert(each.payload, each.vs, each.ve) for each in lives if each.is_event)
        _write(output, "logical", [*events, Stable(INFINITY)])


def _lies(told: Sequence[str], by: int) -> Lie | None:
    fractions = {}
    for text in told:
        kind, _, fraction = text.partition("=")
        try:
            fractions[kind] = float(fraction)
        except ValueError:
            fractions[kind] = -1.0
        if kind not in KINDS or not 0 <= fractions[kind] <= 1:
            kinds = ", ".join(KINDS)
            raise ConfigurationError(f"--lie takes KIND=FRACTION, got {text!r}; kinds: {kinds}")
    return Lie(**fractions, by=by) if fractions else None


def _variations(preset: str | None, n: int) -> list[tuple[str, Variation]]:
    if preset is None:
        return [(str(number), Variation(stable_every=100)) for number in range(n)]
    names = [name.strip().upper() for name in preset.split(",")]
    if unknown := set(names) - set(VARIATIONS):
        raise ConfigurationError(f"no preset {', '.join(sorted(unknown))}: choose of A, B, C")
    turns = [(names[number % len(names)], number // len(names)) for number in range(n)]
    return [(f"{name}{turn or ''}".lower(), VARIATIONS[name]) for name, turn in turns]


def _lives(source: str | None, months: str | None) -> Sequence[Life]:
    if (source is None) == (months is None):
        raise ConfigurationError("give either FILE or --flights")
    if months is not None:
        return list(flights(_months(months)))
    assert source is not None
    with reading([source]) as wrap:
        decoded = wrap(source, read_elements(source, WireDecoder()))
        return lives_of(sorted(_events(source, decoded), key=lambda event: event[1]))


def _events(source: str, decoded: Iterable[tuple[int, Element]]) -> Iterator[Event]:
    for line, element in decoded:
        if isinstance(element, Insert):
            yield Event(element.payload, element.vs, element.ve)
        elif not isinstance(element, Stable):
            raise ConfigurationError(
                f"{source}:{line}: a logical stream holds inserts (and stables, which are ignored)"
            )


def _months(text: str) -> tuple[int, ...]:
    if text == "year":
        return MONTHS
    parts = text.split(",")
    if not all(part.isdigit() and int(part) in MONTHS for part in parts):
        raise ConfigurationError(f"--flights takes months from 1 to 12, as 1,2, or year: {text!r}")
    return tuple(map(int, parts))


def _write(output: str, name: str, stream: Iterable[Element]) -> None:
    if output != "-":
        Path(output).mkdir(parents=True, exist_ok=True)
    path = "-" if output == "-" else str(Path(output) / f"{name}.ndjson")
    counts = {"insert": 0, "adjust": 0, "stable": 0}
    with ElementWriter(path) as writer:
        for element in stream:
            writer.write(element)
            counts[_kind(element)] += 1
    said = ", ".join(f"{count:,} {kind}s" for kind, count in counts.items())
    typer.echo(f"{path}: {said}", err=True)


def _kind(element: Element) -> str:
    return str(type(element).__struct_config__.tag)
