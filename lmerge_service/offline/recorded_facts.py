"""Recorded input of a query: facts or elements in files, as the steps that a replica takes.

Theory
    A line of facts is a JSON object; one of elements is as the wire has it. A file is read as one
    partition: its facts in the order of lines, each late that is more than the source's lateness
    below the highest time so far; the stable point is that much below it. Of several files the one
    whose stable point is the least is read on. What becomes no event is left out and counted, with
    its line and the reason.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from lmerge_service.elements import INFINITY, START, Element, Stable
from lmerge_service.errors import ConfigurationError, ElementError
from lmerge_service.formats.bulk import Rule
from lmerge_service.formats.ndjson import read_elements, read_lines
from lmerge_service.queries import logical
from lmerge_service.queries.checking import Step
from lmerge_service.queries.fact_reader import FactReader
from lmerge_service.queries.logical import Node
from lmerge_service.queries.rows import Refusal, Row
from lmerge_service.tdb import TDB

__all__ = ("Recorded",)

_NAMED: Final = 5
"""So many of the lines that were left out are kept."""


@dataclass(slots=True)
class Recorded:
    """The files of the sources of a plan, by name (`-` is standard input); to be read once.

    Raises:
        ConfigurationError: a source has no file, or a file no source.
    """

    plan: Node
    files: Mapping[str, str]
    taken: int = 0
    """Facts and elements that count."""
    late: int = 0
    rejected: int = 0
    repeated: int = 0
    """Facts with the key of another."""
    left_out: list[str] = field(default_factory=list)
    """The first lines that do not count, each with the reason."""

    def __post_init__(self) -> None:
        names = set(logical.sources(self.plan))
        for name in sorted(self.files.keys() - names):
            there = ", ".join(sorted(names))
            raise ConfigurationError(f"the query has no source {name!r}; there is {there}")
        for name in sorted(names - self.files.keys()):
            raise ConfigurationError(f"no file is given for the source {name!r}: {name}=FILE")

    def steps(self) -> Iterator[Step]:
        """What each line that counts brings; at last the ends of all sources.

        Raises:
            ElementError: a line of elements is none, or is illegal where it stands.
            ConfigurationError: a file cannot be read.
        """
        found = logical.sources(self.plan)
        streams: dict[str, Iterator[Step]] = {}
        for name, file in self.files.items():
            source = found[name]
            if isinstance(source, logical.Source):
                streams[name] = self._facts(source, file)
            else:
                streams[name] = self._elements(source, file)
        stable = dict.fromkeys(streams, START)
        while streams:
            name = min(streams, key=stable.__getitem__)
            step = next(streams[name], None)
            if step is None:
                del streams[name]
                continue
            for element in step.elements:
                if type(element) is Stable:
                    stable[name] = element.vc
            yield step

    def _facts(self, source: logical.Source, file: str) -> Iterator[Step]:
        reader = FactReader(source, logical.headroom(self.plan))
        places = [source.fields.position(column) for column in source.key]
        keys: set[Row] = set()
        high = point = START
        place, name = file, "<stdin>" if file == "-" else file
        for number, line in read_lines(file, Rule().max_record_bytes):
            place = f"{name}:{number}"
            found = reader.read(_decoded(line))
            if isinstance(found, int):  # no event: so far is the source
                high = max(high, found)
                reached = high if high == INFINITY else high - source.lateness
                if reached > point:
                    point = reached
                    yield Step(place, source.name, [Stable(point)])
                continue
            if isinstance(found, Refusal):
                of = "" if found.column is None else f"{found.column}: "
                self._leave_out("rejected", f"{place}: {found.reason} ({of}{found.value})")
                continue
            key = tuple(found.payload[at] for at in places)
            if found.vs < point or point == INFINITY:
                after = "the end" if point == INFINITY else f"{point}"
                self._leave_out("late", f"{place}: late, its time {found.vs} is below {after}")
                continue
            if source.key and key in keys:
                self._leave_out("repeated", f"{place}: repeated, a fact has this key already")
                continue
            keys.add(key)
            self.taken += 1
            elements: list[Element] = [found]
            high = max(high, found.vs)
            if high - source.lateness > point:
                point = high - source.lateness
                elements.append(Stable(point))
            yield Step(place, source.name, elements)
        if point != INFINITY:
            yield Step(place, source.name, [Stable(INFINITY)])

    def _elements(self, source: logical.Elements, file: str) -> Iterator[Step]:
        rows: dict[Any, Row] = {}
        tdb = TDB()
        place, name = file, "<stdin>" if file == "-" else file
        for number, read in read_elements(file, Rule().decoder()):
            place, element = f"{name}:{number}", read
            if not isinstance(read, Stable):
                if read.payload not in rows:
                    rows[read.payload] = _row(source, read.payload, place)
                element = msgspec.structs.replace(read, payload=rows[read.payload])
            if wrong := tdb.violation(element):
                raise ElementError("illegal", f"{place}: {wrong}")
            tdb.apply(element)
            self.taken += not isinstance(element, Stable)
            yield Step(place, source.name, [element])
        if tdb.stable != INFINITY:
            yield Step(place, source.name, [Stable(INFINITY)])

    def _leave_out(self, kind: str, line: str) -> None:
        setattr(self, kind, getattr(self, kind) + 1)
        if len(self.left_out) < _NAMED:
            self.left_out.append(line)


def _row(source: logical.Elements, payload: bytes, place: str) -> Row:
    row = source.fields.row(msgspec.json.decode(payload))
    if isinstance(row, Refusal):
        of = "" if row.column is None else f"{row.column}: "
        raise ElementError(
            row.reason, f"{place}: no row {source.fields}: {row.reason} ({of}{row.value})"
        )
    return row


def _decoded(line: bytes) -> object:
    """What a line is; its text, which is no fact, if it is no JSON."""
    try:
        return msgspec.json.decode(line)
    except msgspec.DecodeError:
        return line.decode(errors="backslashreplace")
