"""Elements as records of a dialect: to try it with, and to test the way back.

Theory
    A changelog cannot take back what it wrote about the past, so a stream is written as far as it
    is *settled*: with stable(c) come the beginnings and ends before c, in the order of time, and
    then a record that carries c. What a decoder makes of it is equivalent to the stream, cut at its
    last stable. Open and close elements can be revised: each element is written as it comes.

    A key has one row at a time; a stream in which two overlap has no such form and is refused.
    Two events of equal payload that touch are one row that goes and comes back at one instant,
    which is read as one event.

    `WRITTEN` gives, by name, the format by which what is written here must be read.
"""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import msgspec

from lmerge_service.elements import INFINITY, Adjust, Element, Insert, Stable
from lmerge_service.errors import IllegalStreamError
from lmerge_service.formats.dialects.decoding import path_of
from lmerge_service.formats.dialects.options import (
    Debezium,
    DialectFormat,
    Flink,
    Lateness,
    OpenClose,
    Upserts,
    Watermark,
)
from lmerge_service.formats.dialects.reading import fields_of, find, merged

__all__ = ("WRITTEN", "DialectWriter", "Written", "writer")

WRITTEN: Final[dict[str, DialectFormat]] = {
    "debezium": Debezium(dialect="debezium", stable=Lateness(lateness=0, heartbeats=True)),
    "flink": Flink(
        dialect="flink", encoding="rowkind", time="at", stable=Watermark(watermark="watermark")
    ),
    "openclose": OpenClose(dialect="openclose"),
    "upserts": Upserts(dialect="upserts", stable=Watermark(watermark="watermark")),
}


@dataclass(frozen=True, slots=True)
class Written:
    """One record."""

    key: bytes | None
    value: bytes | None
    timestamp: int | None = None
    """Milliseconds; None leaves it to the producer."""
    everywhere: bool = False
    """Every partition needs it."""


class DialectWriter(Protocol):
    """Writes one stream in one dialect."""

    def write(self, element: Element) -> Sequence[Written]:
        """The records that encode the element, or what it settles.

        Raises:
            IllegalStreamError: the dialect cannot express it.
        """


def writer(name: str, key: Sequence[str] = ()) -> DialectWriter:
    """The writer of a dialect in `WRITTEN`; `key` names the fields of the payload that make the
    key, by default the payload as a whole."""
    if name == "openclose":
        return _OpenClose()
    forms: dict[str, _Form] = {"debezium": _Debezium(), "flink": _Flink(), "upserts": _Upserts()}
    return _Changes(forms[name], key)


class _OpenClose:
    def write(self, element: Element) -> Sequence[Written]:
        if type(element) is Stable:
            value = b'{"op":"stable","vc":%b}' % _time(element.vc)
            return [Written(None, value, everywhere=True)]
        payload: bytes = element.payload  # type: ignore[union-attr]
        vs, ve = element.vs, element.ve  # type: ignore[union-attr]
        close = b'{"op":"close","payload":%b,"vs":%d,"ve":%b}' % (payload, vs, _time(ve))
        if type(element) is Adjust:
            return [Written(payload, close)]
        opened = Written(payload, b'{"op":"open","payload":%b,"vs":%d}' % (payload, vs))
        return [opened] if ve == INFINITY else [opened, Written(payload, close)]


class _Changes:
    """Settles a stream, and has each change of a key written."""

    def __init__(self, form: "_Form", key: Sequence[str]) -> None:
        self._form = form
        self._paths = [path_of(each) for each in key]
        self._settled = _Settled()
        self._live: dict[bytes, bytes] = {}

    def write(self, element: Element) -> Sequence[Written]:
        records: list[Written] = []
        for t, changes in self._settled.take(element):
            for key, (old, new) in self._by_key(t, changes).items():
                records += self._form.change(t, key, old, new)
        if type(element) is Stable:
            records.append(self._form.stable(element.vc))
        return records

    def _by_key(
        self, t: int, changes: Sequence[tuple[bool, bytes]]
    ) -> dict[bytes, tuple[bytes | None, bytes | None]]:
        """(old, new) of each key that changes at t."""
        before: dict[bytes, bytes | None] = {}
        for begins, payload in changes:
            key = self._key(payload)
            before.setdefault(key, self._live.get(key))
            if not begins:
                del self._live[key]
            elif key in self._live:
                rows = f"two rows of key {_shown(key)} are valid at {t}"
                raise IllegalStreamError(f"{rows}: the dialect cannot express that")
            else:
                self._live[key] = payload
        return {key: (old, self._live.get(key)) for key, old in before.items()}

    def _key(self, payload: bytes) -> bytes:
        if not self._paths:
            return payload
        found = {}
        fields = fields_of(payload) if payload.startswith(b"{") else {}
        for path in self._paths:
            if (value := find(fields, path)) is None:
                raise IllegalStreamError(f"payload {_shown(payload)} has no {'.'.join(path)}")
            found[".".join(path)] = value
        return merged(found)


class _Settled:
    """What a stream has made final, in the order of time, ends before beginnings."""

    def __init__(self) -> None:
        self._ends: dict[tuple[bytes, int], int] = {}
        self._begun: set[tuple[bytes, int]] = set()
        self._due: list[tuple[int, bool, bytes, int]] = []
        """A heap of (time, begins, payload, vs)."""

    def take(self, element: Element) -> Iterator[tuple[int, list[tuple[bool, bytes]]]]:
        """(time, [(begins, payload)…]) for each time that is settled now."""
        match element:
            case Insert(payload, vs, ve):
                if (payload, vs) in self._ends:
                    raise IllegalStreamError("(payload, vs) is no key: the dialect needs case R3")
                self._keep(payload, vs, ve)
                heapq.heappush(self._due, (vs, True, payload, vs))
            case Adjust(payload, vs, _, ve):
                if (payload, vs) not in self._ends:
                    raise IllegalStreamError(f"an adjust of no event, {_shown(payload)} at {vs}")
                self._keep(payload, vs, ve)
            case Stable(vc):
                yield from self._until(vc)

    def _keep(self, payload: bytes, vs: int, ve: int) -> None:
        if ve == vs:
            del self._ends[payload, vs]
        else:
            self._ends[payload, vs] = ve
            heapq.heappush(self._due, (ve, False, payload, vs))

    def _until(self, c: int) -> Iterator[tuple[int, list[tuple[bool, bytes]]]]:
        at = INFINITY
        changes: list[tuple[bool, bytes]] = []
        while self._due and self._due[0][0] < c:
            t, begins, payload, vs = heapq.heappop(self._due)
            if not self._counts(t, begins, payload, vs):
                continue
            if changes and t > at:
                yield at, changes
                changes = []
            at = t
            changes.append((begins, payload))
        if changes:
            yield at, changes

    def _counts(self, t: int, begins: bool, payload: bytes, vs: int) -> bool:
        """An entry of the heap still holds, and for the first time."""
        event = payload, vs
        if begins:
            fresh = event in self._ends and event not in self._begun
            if fresh:
                self._begun.add(event)
            return fresh
        if self._ends.get(event) != t:
            return False
        del self._ends[event]
        self._begun.discard(event)
        return True


class _Form(Protocol):
    """How a dialect writes the change of a key, from one row (or none) to another."""

    def change(
        self, t: int, key: bytes, old: bytes | None, new: bytes | None
    ) -> Sequence[Written]: ...
    def stable(self, c: int) -> Written: ...


class _Debezium:
    def change(self, t: int, key: bytes, old: bytes | None, new: bytes | None) -> Sequence[Written]:
        op = "c" if old is None else "d" if new is None else "u"
        if old is None and new is None:
            return []
        text = b'{"before":%b,"after":%b,"source":{"ts_ms":%d},"op":"%b","transaction":null}' % (
            old or b"null", new or b"null", t, op.encode(),
        )  # fmt: skip
        tombstones = [Written(key, None)] * (op == "d")
        return [Written(key, text), *tombstones]

    def stable(self, c: int) -> Written:
        return Written(b'{"serverName":"lmerge"}', b'{"ts_ms":%d}' % c, everywhere=True)


class _Flink:
    _OWN: Final = frozenset({"op", "at", "watermark"})

    def change(self, t: int, key: bytes, old: bytes | None, new: bytes | None) -> Sequence[Written]:
        rows = []
        if old is not None:
            rows.append((b"-D" if new is None else b"-U", old))
        if new is not None:
            rows.append((b"+I" if old is None else b"+U", new))
        return [Written(key, self._row(kind, t, row)) for kind, row in rows]

    def _row(self, kind: bytes, t: int, row: bytes) -> bytes:
        fields = _object(row, self._OWN)
        return merged({**fields, "op": b'"%b"' % kind, "at": b"%d" % t})

    def stable(self, c: int) -> Written:
        return Written(None, b'{"watermark":%d}' % c, everywhere=True)


class _Upserts:
    def change(self, t: int, key: bytes, old: bytes | None, new: bytes | None) -> Sequence[Written]:
        if old is None and new is None:
            return []
        if t < 0:
            raise IllegalStreamError(f"time {t}: Kafka has no timestamps before 0")
        if new is not None:
            _object(new, frozenset({"watermark"}))
        return [Written(key, new, timestamp=t)]

    def stable(self, c: int) -> Written:
        return Written(None, b'{"watermark":%d}' % c, everywhere=True)


def _object(row: bytes, own: frozenset[str]) -> dict[str, Any]:
    """The members of a row, which must leave the format its own."""
    if not row.startswith(b"{"):
        raise IllegalStreamError(f"payload {_shown(row)} is no row: an object is needed")
    fields = fields_of(row)
    if taken := own & fields.keys():
        names = msgspec.json.encode(min(taken)).decode()
        raise IllegalStreamError(f"payload {_shown(row)} has a field {names} of its own")
    return fields


def _shown(text: bytes) -> str:
    shown = text[:100].decode(errors="replace")
    return shown if len(text) <= 100 else shown + "..."


def _time(t: int) -> bytes:
    return b"null" if t == INFINITY else b"%d" % t
