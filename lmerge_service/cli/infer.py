"""`lmerge infer`: which case do recorded streams obey, and which element breaks each first?"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Annotated, Any

import msgspec
import typer

from lmerge_service.cli.options import TOPIC, EqualityOptions, Json, KafkaOptions, check_topic
from lmerge_service.cli.streams import check_files, label, reading
from lmerge_service.cli.words import print_json, shortened
from lmerge_service.core.case import Case
from lmerge_service.elements import INFINITY
from lmerge_service.formats.bulk import Rule
from lmerge_service.formats.wire import encode
from lmerge_service.offline.infer import Inferred, Recorded, recorded, recorded_topic
from lmerge_service.offline.infer import infer as infer_from
from lmerge_service.offline.inference import Break, Inference, Restriction

__all__ = ("infer",)


def infer(
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="INPUT", help="Element files, - for stdin, or kafka:TOPIC: the replicas."
        ),
    ],
    json: Json = False,
    *,
    kafka: KafkaOptions,
    equality: EqualityOptions,
) -> None:
    """Infer which case recorded streams obey, and which element is the first to break each.

    Several inputs are taken for replicas of one query: a case must hold for all of them. Only
    then can R1 be recognised, by comparing the order of their events at equal vs.

    An element that is not legal where it stands is named, counted and left out. What was recorded
    shows what a query did, not what it must do: that depends on its plan.

    Example: `lmerge infer jan/a.ndjson jan/b.ndjson`
    """
    files = [each for each in inputs if not each.startswith(TOPIC)]
    check_files(files)
    for each in inputs:
        if each.startswith(TOPIC):
            check_topic(each.removeprefix(TOPIC))
    with _recordings(inputs, files, kafka, equality.rule) as recordings:
        found = infer_from(recordings)
    if json:
        print_json(_document(found))
    else:
        _show(found)


@contextmanager
def _recordings(
    inputs: Sequence[str], files: Sequence[str], kafka: KafkaOptions, rule: Rule
) -> Iterator[list[Recorded]]:
    with ExitStack() as opened:
        streams = iter(opened.enter_context(reading(files, rule=rule)) if files else ())
        recordings = []
        for each in inputs:
            if each.startswith(TOPIC):
                topic = each.removeprefix(TOPIC)
                found = recorded_topic(kafka.connection(), topic, rule.decoder())
                recordings.append(opened.enter_context(found))
            else:
                recordings.append(recorded(label(each), next(streams)))
        yield recordings


# For people


def _show(found: Inferred) -> None:
    for each in found.streams:
        _show_stream(each)
    for case in Case:
        _show_case(found, case)
    for note in _notes(found):
        typer.echo(f"note: {note}")
    typer.echo("for the topology:")
    typer.echo(f"case: {found.case}")


def _show_stream(stream: Inference) -> None:
    state = "complete" if stream.stable == INFINITY else "not ended"
    legal = "legal" if not stream.illegal else f"NOT legal in {stream.illegal:,} elements"
    typer.echo(
        f"{stream.name}: {legal}; {stream.inserts:,} inserts, {stream.adjusts:,} adjusts, "
        f"{stream.stables:,} stables; {state}"
    )
    typer.echo(
        f"  out of order: {_fraction_disordered(stream):.1%} of the inserts, by "
        f"{stream.max_disorder} at most; live at most: {stream.max_live:,} events, "
        f"{stream.max_multiplicity:,} of one payload and vs"
    )
    if first := stream.first_break([Restriction.LEGAL]):
        typer.echo(f"  first that is not legal: {_described(first)}")


def _show_case(found: Inferred, case: Case) -> None:
    match found.obeys(case):
        case True:
            typer.echo(f"{case}: yes")
        case None:
            typer.echo(f"{case}: possible: {found.ties_unknown}")
        case False:
            first = found.first_break(case)
            assert first is not None
            typer.echo(f"{case}: no, {_described(first)}")


def _described(found: Break) -> str:
    return f"{found}: {shortened(encode(found.element).decode())}"


def _notes(found: Inferred) -> Iterator[str]:
    if not any(each.inserts or each.adjusts for each in found.streams):
        yield "no events were seen, so every case is as good as another"
    if len(found.streams) > 1:
        yield "`lmerge audit` checks whether these are replicas of one query"
    if not found.legal:
        yield "elements that are not legal were left out; a merge reports them as breaches"
    for each in found.streams:
        if Restriction.ONE_PARTITION in each.breaks:
            yield (
                f"{each.name} keeps order within a partition only: R3 at best, unless all its "
                "events go to one partition"
            )
        elif each.partitions > 1 and found.case < Case.R3:
            yield (
                f"{each.name} has {each.partitions} partitions, of which one holds all events: "
                f"{found.case} needs a topic of one"
            )
        if each.restarts:
            yield f"{each.name} has started over: only its last incarnation counts"


# For programs


def _document(found: Inferred) -> dict[str, Any]:
    return {
        "case": found.case,
        "legal": found.legal,
        "cases": {case: _case(found, case) for case in Case},
        "streams": [_stream(each) for each in found.streams],
        "notes": list(_notes(found)),
    }


def _case(found: Inferred, case: Case) -> dict[str, Any]:
    obeys = found.obeys(case)
    return {
        "obeys": obeys,
        "first_break": _break(found.first_break(case)),
        "unknown": found.ties_unknown if obeys is None else None,
    }


def _stream(stream: Inference) -> dict[str, Any]:
    return {
        "name": stream.name,
        "complete": stream.stable == INFINITY,
        "inserts": stream.inserts,
        "adjusts": stream.adjusts,
        "stables": stream.stables,
        "illegal": stream.illegal,
        "first_illegal": _break(stream.first_break([Restriction.LEGAL])),
        "fraction_disordered": _fraction_disordered(stream),
        "max_disorder": stream.max_disorder,
        "max_live": stream.max_live,
        "max_multiplicity": stream.max_multiplicity,
        "partitions": stream.partitions,
        "restarts": stream.restarts,
    }


def _break(found: Break | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "where": found.where,
        "why": found.why,
        "element": msgspec.Raw(encode(found.element)),
    }


def _fraction_disordered(stream: Inference) -> float:
    return stream.disordered / stream.inserts if stream.inserts else 0.0
