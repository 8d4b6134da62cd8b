"""Other encodings of changing tables, read as elements, and written (docs/dialects.md)."""

from collections.abc import Callable

from lmerge_service.formats.dialects.debezium import DebeziumDecoder
from lmerge_service.formats.dialects.decoding import Decoder
from lmerge_service.formats.dialects.flink import FlinkDecoder
from lmerge_service.formats.dialects.homes import Homes
from lmerge_service.formats.dialects.openclose import OpenCloseDecoder
from lmerge_service.formats.dialects.options import (
    Debezium,
    DialectFormat,
    Flink,
    Format,
    Lateness,
    OpenClose,
    RowLifetime,
    Transactions,
    Upserts,
    Watermark,
)
from lmerge_service.formats.dialects.reading import Reader
from lmerge_service.formats.dialects.upserts import UpsertsDecoder
from lmerge_service.formats.dialects.writing import WRITTEN, DialectWriter, Written, writer
from lmerge_service.formats.payload import PayloadCache
from lmerge_service.formats.wire import WireDecoder

__all__ = (
    "WRITTEN",
    "Debezium",
    "Decoder",
    "DialectFormat",
    "DialectWriter",
    "Flink",
    "Format",
    "Homes",
    "Lateness",
    "OpenClose",
    "RowLifetime",
    "Transactions",
    "Upserts",
    "Watermark",
    "Written",
    "build_decoder",
    "decoders_of",
    "goes_by_partition",
    "writer",
)

_DECODERS: dict[type, Callable[..., Decoder]] = {
    OpenClose: OpenCloseDecoder,
    Debezium: DebeziumDecoder,
    Flink: FlinkDecoder,
    Upserts: UpsertsDecoder,
}


def build_decoder(options: DialectFormat, cache: PayloadCache, max_record_bytes: int) -> Decoder:
    """A decoder for one partition; equal payloads are shared by way of the cache."""
    return _DECODERS[type(options)](options, Reader(cache, max_record_bytes))


def decoders_of(format_: Format, wire: WireDecoder) -> Callable[[], Decoder] | None:
    """What makes the decoders of a stream in this format, by the limits of `wire` and sharing its
    payloads; None for the wire format itself."""
    if format_ == "wire":
        return None
    return lambda: build_decoder(format_, wire.cache, wire.max_record_bytes)


def goes_by_partition(format_: Format) -> bool:
    """What a record means depends on those before it in its partition. On the wire, and where
    rows with a lifetime have no key, each stands for itself."""
    return format_ != "wire" and not (isinstance(format_, Flink) and format_.lifetime is not None)
