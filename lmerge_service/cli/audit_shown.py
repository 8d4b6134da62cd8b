"""What an audit found, whichever engine made it, in lines for people and as a document."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from lmerge_service.cli.words import (
    fields_of,
    finite,
    payload_json,
    payload_text,
    point,
    shortened,
    since,
)
from lmerge_service.elements import INFINITY, START
from lmerge_service.tdb import Difference

__all__ = (
    "document",
    "ends",
    "lines",
    "stream_line",
    "table_document",
    "table_lines",
    "verdict_lines",
)


if TYPE_CHECKING:
    from lmerge_service.offline.audit import Audited, EquivalenceVerdict, StreamRestart
    from lmerge_service.offline.table_audit import TableVerdict
    from lmerge_service.spark.audit import findings

    Counted: TypeAlias = Audited | findings.StreamSummary
    Compared: TypeAlias = EquivalenceVerdict | findings.AuditFindings


def lines(names: Sequence[str], found: "Compared", most: int) -> Iterator[str]:
    """The streams, the verdict, and the first differences."""
    for name, each in _named(names, found):
        yield stream_line(name, each, "legal")
        yield from map(_restart_line, each.restarts)
    yield from verdict_lines(names, found, most)


def _named(names: Sequence[str], found: "Compared") -> "Iterator[tuple[str, Counted]]":
    yield from zip(names, found.streams, strict=True)


def stream_line(name: str, each: "Counted", word: str) -> str:
    """The events of a stream, and its elements."""
    state = "complete" if each.complete else f"not ended, stable at {point(each.stable)}"
    return (
        f"{name}: {word}, {each.events:,} events by {each.inserts:,} inserts, "
        f"{each.adjusts:,} adjusts, {each.stables:,} stables; {state}"
    )


def _restart_line(each: "StreamRestart") -> str:
    gap, lost = each.gap, ""
    if gap is not None:
        lost = f"; no incarnation has what ends in [{point(gap[0])}, {point(gap[1])})"
    wrong = "" if each.former_illegal is None else f", and not legal ({each.former_illegal})"
    return (
        f"  started over as incarnation {each.incarnation}, correct from "
        f"{since(each.correct_from)}; the one before was stable at {point(each.former_stable)}"
        f"{wrong}{lost}"
    )


def verdict_lines(names: Sequence[str], found: "Compared", most: int) -> Iterator[str]:
    """Whether they mean the same, what they do not agree on, and how far that was looked at."""
    total = found.differences_total
    yield f"NOT equivalent: they differ in {total:,} events" if total else "equivalent"
    for each in found.differences[:most]:
        held = [f"{ends(of)} in {name}" for of, name in zip(each.ends, names, strict=True)]
        payload = shortened(payload_text(each.payload))
        yield f"  payload {payload} vs {each.vs}: {', '.join(held)}"
    if (more := total - min(most, len(found.differences))) > 0:
        yield f"  and {more:,} more (--most shows more)"
    if found.since > START:
        yield f"compared by the events that end at {point(found.since)} or later"
    if found.before is not None and found.before < INFINITY:
        yield f"compared as far as all are final, before {point(found.before)}"
        return
    match [name for name, each in _named(names, found) if not each.complete]:
        case []:
            return
        case [name]:
            yield f"compared as they stand: {name} has not ended"
        case [_, _] if len(names) == 2:
            yield "compared as they stand: neither has ended"
        case several:
            yield f"compared as they stand: {', '.join(several)} have not ended"


def ends(of: Sequence[int]) -> str:
    """The ends of an event, of which there may be several, or none."""
    return "ve " + ", ".join(map(point, of)) if of else "no event"


def document(names: Sequence[str], found: "Compared", most: int) -> dict[str, Any]:
    """The same for programs; an infinite time is null."""
    return {
        "equivalent": not found.differences_total,
        "streams": [
            {
                "name": name,
                **fields_of(each, "events", "inserts", "adjusts", "stables", "stable", "complete"),
                **({"restarts": [*map(_restart, each.restarts)]} if each.restarts else {}),
            }
            for name, each in _named(names, found)
        ],
        "differences_total": found.differences_total,
        "differences": [_difference(each) for each in found.differences[:most]],
        **({} if found.before is None else {"before": finite(found.before)}),
        **({} if found.since == START else {"since": finite(found.since)}),
    }


def _restart(each: "StreamRestart") -> dict[str, Any]:
    gap = None if each.gap is None else [*map(finite, each.gap)]
    named = fields_of(each, "incarnation", "correct_from", "former_stable", "former_illegal")
    return {**named, "gap": gap}


def _difference(found: Difference) -> dict[str, Any]:
    sides = [[finite(ve) for ve in of] for of in found.ends]
    both = dict(zip(("left", "right"), sides, strict=True)) if len(sides) == 2 else {"ends": sides}
    return {"payload": payload_json(found.payload), "vs": found.vs, **both}


def table_lines(found: "TableVerdict", most: int) -> Iterator[str]:
    """What a table has, whether that is what its output is, and the first divergences."""
    yield (
        f"{found.table}: whole, {found.rows:,} rows; {found.checked:,} records checked by the "
        "offsets in their headers"
    )
    total = len(found.divergences)
    if total:
        yield f"NOT what {found.output} is: {total:,} divergences"
    else:
        yield f"what {found.output} is: all {found.live:,} live events, and no other event"
    for each in found.divergences[:most]:
        at = "" if each.offset is None else f" at offset {each.offset}"
        yield f"  partition {each.partition}{at}, key {shortened(each.key)}: {each.why}"
    if (more := total - most) > 0:
        yield f"  and {more:,} more (--most shows more)"
    if found.since > START:
        yield f"compared by the events that end at {point(found.since)} or later"


def table_document(found: "TableVerdict", most: int) -> dict[str, Any]:
    """The same for programs."""
    named = ("partition", "key", "offset", "why")
    return {
        "matches": found.matches,
        **fields_of(found, "output", "table", "rows", "live", "checked"),
        "divergences_total": len(found.divergences),
        "divergences": [fields_of(each, *named) for each in found.divergences[:most]],
        **({} if found.since == START else {"since": finite(found.since)}),
    }
