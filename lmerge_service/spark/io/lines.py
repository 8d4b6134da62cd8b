r"""Files of JSON lines, read in pieces by Spark's Python workers.

Theory
    Spark lists the files, notices new ones and remembers which were done, as it does for any
    files; a worker opens them itself, since Spark's text source gives no offsets. A long
    file is cut into ranges: a line belongs to the range in which it begins.

        |0          |32 MB       a reader of the second range looks back one byte: if that is no
        …line\nli¦ne\nline…     line feed, the first line is the first range's

Cost
    No more than a block and one record in memory. Per line as `decoding`, and nothing is sent to
    the worker.
"""

from collections.abc import Callable, Iterator
from io import BufferedReader
from itertools import accumulate
from pathlib import Path
from typing import IO, Any, Final

import pyarrow as pa
from pyarrow import fs

from lmerge_service.formats.bulk import Rule
from lmerge_service.spark.io.decoding import rows_of

__all__ = ("RANGE_BYTES", "line_reading", "lines_of")

RANGE_BYTES: Final = 32 << 20
_BLOCK_BYTES: Final = 2 << 20


def line_reading(rule: Rule) -> Callable[[Iterator[pa.RecordBatch]], Any]:
    """For `mapInArrow`: from (path, start), each a range, to rows."""

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for path, start in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                yield from _rows(path, start, rule)

    return read


def _rows(path: str, start: int, rule: Rule) -> Iterator[pa.RecordBatch]:
    name = path.removeprefix("file:")
    with _opened(path, name) as file:
        blocks = lines_of(file, start, start + RANGE_BYTES, limit=rule.max_record_bytes)
        for lines, offsets in blocks:
            count = len(lines)
            origin = {
                "source": pa.repeat(name, count),
                "partition": pa.repeat(pa.scalar(0, pa.int32()), count),
                "offset": pa.array(offsets, pa.int64()),
                "timestamp": pa.nulls(count, pa.timestamp("us", "UTC")),
            }
            yield rows_of(pa.array(lines, pa.binary()), rule, origin)


def _opened(path: str, name: str) -> IO[bytes]:
    if path.startswith("file:"):
        return Path(name).open("rb")
    system, inside = fs.FileSystem.from_uri(path)
    return BufferedReader(system.open_input_file(inside), _BLOCK_BYTES)


def lines_of(
    file: IO[bytes], start: int, end: int, *, limit: int
) -> Iterator[tuple[list[bytes], list[int]]]:
    """Lines that begin in [start, end), without their line feeds, and at which byte each does.

    A line of more than `limit` bytes may be cut, but not to as few.
    """
    at = start
    if start:
        file.seek(start - 1)
        at += _skipped(file) - 1
    while at < end and (block := file.read(min(_BLOCK_BYTES, end - at))):
        length = len(block)
        if not block.endswith(b"\n"):
            rest = file.readline(limit + 1)
            block += rest
            length += len(rest)
            if len(rest) > limit and not rest.endswith(b"\n"):
                length += _skipped(file)
        lines = block.split(b"\n")
        if not lines[-1]:
            lines.pop()
        yield lines, list(accumulate((len(line) + 1 for line in lines[:-1]), initial=at))
        at += length


def _skipped(file: IO[bytes]) -> int:
    """Goes behind the next line feed, or to the end; returns how far that was."""
    length = 0
    while part := file.readline(_BLOCK_BYTES):
        length += len(part)
        if part.endswith(b"\n"):
            break
    return length
