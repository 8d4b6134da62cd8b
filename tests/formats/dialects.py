"""What the tests of dialects share: records, decoders by their options, what a decoder returned."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from pydantic import TypeAdapter

from lmerge_service.elements import Element
from lmerge_service.errors import ElementError
from lmerge_service.formats.dialects import Decoder, Format, Written, build_decoder
from lmerge_service.formats.payload import PayloadCache

__all__ = ("Record", "decoded", "decoder", "options", "read", "refusal", "value")


@dataclass(frozen=True)
class Record:
    """One record, as a replica's partition holds it."""

    value: bytes | None
    key: bytes | None = None
    timestamp: int = -1
    partition: int = 0
    offset: int = 0
    topic: str = "in"
    headers: list[tuple[str, bytes]] = field(default_factory=list)


def value(**fields: Any) -> bytes:
    return msgspec.json.encode(fields)


def options(**fields: Any) -> Any:
    """The model of these options, as a topology reads it."""
    return TypeAdapter(Format).validate_python(fields)


def decoder(form: Any = None, max_record_bytes: int = 1 << 20, **fields: Any) -> Decoder:
    return build_decoder(form or options(**fields), PayloadCache(), max_record_bytes)


def decoded(one: Decoder, *records: Record) -> list[Element]:
    elements: list[Element] = []
    for record in records:
        elements += one.decode(record)
        one.check()
    return elements


def read(one: Decoder, written: Iterable[Written]) -> list[Element]:
    """What a decoder makes of what a writer wrote."""
    records = [
        Record(each.value, each.key, -1 if each.timestamp is None else each.timestamp)
        for each in written
    ]
    return decoded(one, *records)


def refusal(one: Decoder, record: Record) -> str:
    """Why a record is refused; and that this leaves the decoder as it was."""
    before = one.snapshot()
    with pytest.raises(ElementError, match=r"^[^\n]+$") as caught:
        one.decode(record)
    assert one.snapshot() == before
    return caught.value.reason
