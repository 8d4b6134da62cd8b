"""Reads the worked examples of the works on queries (tests/vectors/*.json).

`speculative` has cases by element; `pipes` has physical streams, rows [payload, vs, ve] with null
for no end, and logical ones, the payloads of each instant.
"""

import json
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

from lmerge_service.elements import INFINITY, Adjust, Element, Insert, Stable
from lmerge_service.queries.operators.protocol import Operator
from lmerge_service.tdb import TDB
from tests.queries.promises import snapshot_at

_FOLDER = Path(__file__).parents[1] / "vectors"


@cache
def vectors(name: str) -> dict[str, Any]:
    """The cases of one file by id, in its order."""
    return {case["id"]: case for case in json.loads((_FOLDER / f"{name}.json").read_text())}


def cases(name: str, *starts: str) -> list[Any]:
    """The cases of one file whose ids begin so."""
    return [case for id_, case in vectors(name).items() if id_.startswith(starts)]


def payload(value: Any) -> Any:
    """A payload as an operator has it: lists are tuples."""
    return tuple(map(payload, value)) if isinstance(value, list) else value


def time(value: Any) -> int:
    return INFINITY if value in ("inf", None) else value


def element(row: list[Any]) -> Element:
    kind, *fields = row
    if kind == "stable":
        return Stable(time(fields[0]))
    whole = {"insert": Insert, "adjust": Adjust}[kind]
    return whole(payload(fields[0]), *map(time, fields[1:]))  # type: ignore[no-any-return]


def elements(rows: list[Any]) -> list[Element]:
    return [element(row) for row in rows]


def tdb(rows: list[Any]) -> TDB:
    """The TDB of rows [payload, vs, ve]."""
    return TDB((payload(p), time(vs), time(ve)) for p, vs, ve in rows)


def outputs_of(operator: Operator, given: dict[str, Any]) -> list[list[Element]]:
    """What each element of a case's `stream`, or of its `steps` [port, element], emits."""
    steps = given.get("steps") or [[0, row] for row in given["stream"]]
    return [operator.process(element(row), port) for port, row in steps]


def stream(id_: str) -> TDB:
    """A stream of `pipes`: a physical one as it is, of a logical one each instant as a chronon."""
    given = vectors("pipes")[id_]["expect"]
    if isinstance(given, list):
        return tdb(given)
    return TDB((p, int(t), int(t) + 1) for t, payloads in given.items() for p in payloads)


def inputs(id_: str) -> list[TDB]:
    """The input streams of a case of `pipes`."""
    given = vectors("pipes")[id_]["input"]
    return [stream(each) for each in (given if isinstance(given, list) else [given])]


def agrees(found: TDB, id_: str, granule: int = 1) -> bool:
    """Whether a TDB is what a case of `pipes` expects: a logical one instant by instant, at the
    multiples of `granule`."""
    expect = vectors("pipes")[id_]["expect"]
    if isinstance(expect, list):
        return found == tdb(expect)
    last = max(map(int, expect)) + granule
    return all(
        snapshot_at(found, t) == Counter(map(payload, expect.get(str(t), [])))
        for t in range(0, last + 1, granule)
    )


def run(operator: Operator, *tdbs: TDB) -> TDB:
    """The TDB of what an operator emits for whole inputs, fed by inserts in order and closed."""
    found = TDB()
    for port, each in enumerate(tdbs):
        ordered = sorted(each, key=lambda event: (event.vs, repr(event.payload), event.ve))
        fed: list[Element] = [*(Insert(*event) for event in ordered), Stable(INFINITY)]
        for emitted in operator.process_batch(fed, port):
            found.apply(emitted)
    return found
