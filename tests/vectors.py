"""Reads the worked examples of the paper (tests/vectors/*.json) as elements, TDBs and steps."""

import json
from pathlib import Path
from typing import Any

from lmerge_service.elements import INFINITY, START, Adjust, Element, Insert, Stable
from lmerge_service.tdb import TDB

_FOLDER = Path(__file__).parent / "vectors"


def cases(*ops: str) -> list[Any]:
    """The cases of lmerge.json with one of these operations."""
    found = json.loads((_FOLDER / "lmerge.json").read_text())
    return [case for case in found if case.get("op") in ops]


def time(value: int | str) -> int:
    return {"inf": INFINITY, "-inf": START}[value] if isinstance(value, str) else value


def element(row: list[Any]) -> Element:
    kind, *fields = row
    if kind == "stable":
        return Stable(time(fields[0]))
    payload, *times = fields
    if kind == "insert":
        return Insert(payload, *map(time, times))
    assert kind == "adjust", row
    return Adjust(payload, *map(time, times))


def elements(rows: list[Any]) -> list[Element]:
    return [element(row) for row in rows]


def tdb(rows: list[Any], last: int | str = "-inf") -> TDB:
    return TDB([(payload, time(vs), time(ve)) for payload, vs, ve in rows], time(last))
