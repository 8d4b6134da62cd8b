r"""Corrections of facts that were processed: what is written of them, and inputs that apply them.

Theory
    A topic of facts is append-only, so a correction is kept beside it: in the replica's commit
    records, from the first one of the incarnation that it begins (`correcting`). The input applies
    it while the facts are read once more: where the wrong fact's event would enter, the right one
    does, or none; what should have been there and was not enters first of all. That is a function
    of the facts before it, like all else about an input, so a process that was killed comes to the
    same.

        was                           is                          a revision that is
        {"time": 7, "delay": 20}      {"delay": 2}                a replacement
        {"time": 7, "delay": 20}                                  a deletion
                                      {"time": 7, "delay": 20}    a late insertion

    >>> from lmerge_service.queries.plan import facts
    >>> flights = facts("flights", time="time", fields={"origin": str, "delay": int})
    >>> asked = read_corrections([b'{"was": {"time": 7, "origin": "JFK"}, "is": {"delay": 2}}'],
    ...                          {"flights": flights.plan})
    >>> asked[0].matches(Insert(("JFK", 20), 7, 8))
    True
    >>> asked[0].revision(Insert(("JFK", 20), 7, 8)).new
    Insert(payload=('JFK', 2), vs=7, ve=8)

Invariants
    K1  Each correction changes one event, the first that is as it says; of several, each what those
        before it have left.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from lmerge_service.elements import Element, Insert
from lmerge_service.errors import ConfigurationError, StateError
from lmerge_service.kafka.records import Record
from lmerge_service.queries import logical
from lmerge_service.queries.fact_reader import FactReader
from lmerge_service.queries.replay.revising import Revision
from lmerge_service.queries.rows import Refusal, Row
from lmerge_service.replicas.commit_record import Correction
from lmerge_service.replicas.inputs import FactsInput

__all__ = ("AskedCorrection", "CorrectedFacts", "read_corrections", "written")


def written(revision: Revision) -> Correction:
    """What commit records have of a revision."""
    old, new = (
        None if each is None else (each.payload, each.vs, each.ve)
        for each in (revision.old, revision.new)
    )
    return Correction(revision.source, old, new)


# What a person asks for


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    source: str | None = None
    was: dict[str, Any] | None = None
    is_: dict[str, Any] | None = msgspec.field(default=None, name="is")


class AskedCorrection:
    """A correction that names the fact by some of its columns, its time among them."""

    def __init__(self, source: logical.Source, line: _Line, at: str, headroom: int = 1) -> None:
        self.source = source
        self.at = at
        """Where it stands, for messages."""
        self._reader = FactReader(source, headroom)
        self._line = line
        self.time: int | None = None
        """Of the fact that it is about; None: it is one more."""
        if line.was is not None:
            time = self._reader.time(line.was)
            if isinstance(time, Refusal):
                raise self._refused("was", time)
            self.time = time
        self._check("was", line.was or {})
        self._check("is", line.is_ or {})

    def _check(self, member: str, columns: Iterable[str]) -> None:
        """Refuses columns that the source has not: facts may have more, but here it is a slip."""
        times = (self.source.time, self.source.until)
        for name in columns:
            if name not in self.source.fields and name not in times:
                raise ConfigurationError(
                    f"{self.at}: {member}: {self.source.name} has no column {name!r}; there is "
                    f"{', '.join(self.source.fields.names)}"
                )

    def matches(self, event: Insert[Any]) -> bool:
        """Whether it may be about the event of a fact."""
        if self._line.was is None or event.vs != self.time:
            return False
        fact = self._fact(event)
        return all(fact.get(name) == value for name, value in self._line.was.items())

    def revision(self, old: Insert[Row] | None) -> Revision:
        """The revision of the event that it was found to be about.

        Raises:
            ConfigurationError: what it is to be is no fact.
        """
        if self._line.is_ is None:
            return Revision(self.source.name, old)
        fact = self._line.is_ if old is None else {**self._fact(old), **self._line.is_}
        event = self._reader.event(fact)
        if isinstance(event, Refusal):
            raise self._refused("is", event)
        return Revision(self.source.name, old, event)

    def _fact(self, event: Insert[Any]) -> dict[str, Any]:
        fact = {**self.source.fields.fact(event.payload), self.source.time: event.vs}
        return fact if self.source.until is None else {**fact, self.source.until: event.ve}

    def _refused(self, member: str, why: Refusal) -> ConfigurationError:
        return ConfigurationError(f"{self.at}: {member}: {why.column}: {why.value} ({why.reason})")


def read_corrections(
    lines: Iterable[bytes],
    sources: Mapping[str, logical.Source | logical.Elements],
    *,
    headroom: int = 1,
    name: str = "corrections",
) -> list[AskedCorrection]:
    """Corrections, one JSON object a line; `name` is what messages call the lines.

    Raises:
        ConfigurationError: a line is none; names the line.
    """
    found: list[AskedCorrection] = []
    for number, text in enumerate(lines, 1):
        if not text.strip():
            continue
        at = f"{name}:{number}"
        try:
            line = msgspec.json.decode(text, type=_Line)
        except (msgspec.MsgspecError, ValueError) as error:
            raise ConfigurationError(f"{at}: not a correction: {error}") from error
        if line.was is None and line.is_ is None:
            raise ConfigurationError(f"{at}: give what the fact `was`, what it `is`, or both")
        found.append(AskedCorrection(_source_of(line, sources, at), line, at, headroom))
    if not found:
        raise ConfigurationError(f"{name} has no corrections")
    return found


def _source_of(
    line: _Line, sources: Mapping[str, logical.Source | logical.Elements], at: str
) -> logical.Source:
    there = ", ".join(sources)
    if line.source is None and len(sources) > 1:
        raise ConfigurationError(f'{at}: name the "source": there is {there}')
    source = sources.get(line.source or next(iter(sources)))
    if source is None:
        raise ConfigurationError(f"{at}: the query reads {there}, not {line.source}")
    if isinstance(source, logical.Elements):
        raise ConfigurationError(
            f"{at}: {source.name} has elements, not facts: correct the query that publishes them"
        )
    return source


# Applying them


class CorrectedFacts(FactsInput):
    """Facts of which some are corrected while they are read."""

    def __init__(
        self,
        source: logical.Source,
        topic: str,
        width: int,
        headroom: int,
        corrections: Sequence[Correction],
    ) -> None:
        super().__init__(source, topic, width, headroom)
        self._left = list(corrections)
        """Those that have not been applied yet."""

    def take(self, partition: int, records: Sequence[Record]) -> list[Element]:
        events = super().take(partition, records)
        if not self._left:
            return events
        late = [Insert(*each.new) for each in self._left if each.old is None and each.new]
        self._left = [each for each in self._left if each.old is not None]
        corrected = map(self._corrected, [*late, *events])
        return [event for event in corrected if event is not None]

    def _corrected(self, event: Element) -> Element | None:
        """An event as corrections leave it, one after the other; None: it is taken away."""
        found: Element | None = event
        while isinstance(found, Insert):
            key = (found.payload, found.vs, found.ve)
            meant = next((each for each in self._left if each.old == key), None)
            if meant is None:
                break
            self._left.remove(meant)
            found = None if meant.new is None else Insert(*meant.new)
        return found

    def saved(self) -> bytes:
        return msgspec.msgpack.encode([super().saved(), self._left])

    def restore(self, saved: bytes) -> None:
        try:
            below, self._left = msgspec.msgpack.decode(saved, type=tuple[bytes, list[Correction]])
        except (msgspec.MsgspecError, ValueError) as error:
            raise StateError(
                f"the snapshot of the input {self.name!r} is damaged: {error}"
            ) from error
        super().restore(below)
