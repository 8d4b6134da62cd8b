"""`lmerge infer`: which case do recorded streams obey, and which element breaks each first?"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import msgspec

from lmerge_service.cli.options import (
    EqualityOptions,
    Json,
    KafkaOptions,
    argument,
    topic_of,
)
from lmerge_service.cli.streams import check_files, label, reading
from lmerge_service.cli.words import fields_of, report, shortened
from lmerge_service.core.case import Case
from lmerge_service.elements import INFINITY
from lmerge_service.formats.bulk import Rule
from lmerge_service.formats.wire import encode
from lmerge_service.offline.infer import Inferred, RecordedStream, recorded, recorded_topic
from lmerge_service.offline.infer import infer as infer_from
from lmerge_service.offline.inference import Break, Inference, Restriction

__all__ = ("infer",)


def infer(
    inputs: list[str] = argument(
        "INPUT", "Element files, - for stdin, or kafka:TOPIC: the replicas."
    ),
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
    files = [each for each in inputs if topic_of(each) is None]
    check_files(files)
    with _recordings(inputs, files, kafka, equality.rule) as recordings:
        found = infer_from(recordings)
    report(_document(found), *_lines(found), as_json=json)


@contextmanager
def _recordings(
    inputs: Sequence[str], files: Sequence[str], kafka: KafkaOptions, rule: Rule
) -> Iterator[list[RecordedStream]]:
    with ExitStack() as opened:
        streams = iter(opened.enter_context(reading(files, rule=rule)) if files else ())
        recordings = []
        for each in inputs:
            if (topic := topic_of(each)) is not None:
                found = recorded_topic(kafka.connection(), topic, rule.decoder())
                recordings.append(opened.enter_context(found))
            else:
                recordings.append(recorded(label(each), next(streams)))
        yield recordings


# For people


def _lines(found: Inferred) -> Iterator[str]:
    for each in found.streams:
        yield from _stream_lines(each)
    for case in Case:
        yield f"{case}: {_verdict(found, case)}"
    for note in _notes(found):
        yield f"note: {note}"
    yield "for the topology:"
    yield f"case: {found.case}"


def _stream_lines(stream: Inference) -> Iterator[str]:
    state = "complete" if stream.stable == INFINITY else "not ended"
    legal = "legal" if not stream.illegal else f"NOT legal in {stream.illegal:,} elements"
    yield (
        f"{stream.name}: {legal}; {stream.inserts:,} inserts, {stream.adjusts:,} adjusts, "
        f"{stream.stables:,} stables; {state}"
    )
    yield (
        f"  out of order: {_fraction_disordered(stream):.1%} of the inserts, by "
        f"{stream.max_disorder} at most; live at most: {stream.max_live:,} events, "
        f"{stream.max_multiplicity:,} of one payload and vs"
    )
    if first := stream.first_break([Restriction.LEGAL]):
        yield f"  first that is not legal: {_described(first)}"


def _verdict(found: Inferred, case: Case) -> str:
    match found.obeys(case):
        case True:
            return "yes"
        case None:
            return f"possible: {found.ties_unknown}"
    first = found.first_break(case)
    assert first is not None
    return f"no, {_described(first)}"


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
        if each.begins:
            partition, offset = min(each.begins.items())
            yield (
                f"{each.name} begins at offset {offset} of partition {partition}: adjusts of "
                "events that it does not show are taken for legal, and keys are known from there on"
            )


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
    unknown = found.ties_unknown if obeys is None else None
    return {"obeys": obeys, "first_break": _break(found.first_break(case)), "unknown": unknown}


def _stream(stream: Inference) -> dict[str, Any]:
    return {
        **fields_of(stream, "name", "inserts", "adjusts", "stables", "illegal"),
        "complete": stream.stable == INFINITY,
        "first_illegal": _break(stream.first_break([Restriction.LEGAL])),
        "fraction_disordered": _fraction_disordered(stream),
        **fields_of(
            stream, "max_disorder", "max_live", "max_multiplicity", "partitions", "restarts"
        ),
    }


def _break(found: Break | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {**fields_of(found, "where", "why"), "element": msgspec.Raw(encode(found.element))}


def _fraction_disordered(stream: Inference) -> float:
    return stream.disordered / stream.inserts if stream.inserts else 0.0
