"""Bytes and rows to elements and back; when two payloads are equal.

The names here are for the readers and writers of the wire; the other modules are adapters and
the service's own (`dead_letters`, `headers`).
"""

from lmerge_service.formats.dead_letters import DeadLetter
from lmerge_service.formats.ndjson import ElementWriter, read_elements
from lmerge_service.formats.payload import EQUALITY_VERSION, PayloadCache, canonical
from lmerge_service.formats.reasons import Reason
from lmerge_service.formats.wire import WireDecoder, encode

__all__ = (
    "EQUALITY_VERSION",
    "DeadLetter",
    "ElementWriter",
    "PayloadCache",
    "Reason",
    "WireDecoder",
    "canonical",
    "encode",
    "read_elements",
)
