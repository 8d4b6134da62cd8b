"""Parquet read without Spark: damage is found, and reported in one line.

Spark writes a checksum to each page, which Arrow verifies only on request.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pyarrow as pa
import pyarrow.dataset as ds

from lmerge_service.errors import StateError

__all__ = ("CHECKED", "arrow_errors")

CHECKED: Final = ds.ParquetFileFormat(
    default_fragment_scan_options=ds.ParquetFragmentScanOptions(page_checksum_verification=True)
)
"""The format of a dataset whose pages are held to their checksums."""


@contextmanager
def arrow_errors(doing: str) -> Iterator[None]:
    """Translates what Arrow raises; `doing` begins the message, the cause is kept.

    Raises:
        StateError: a file is missing, damaged, or no Parquet.
    """
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        gist = next(filter(None, map(str.strip, str(error).splitlines())), type(error).__name__)
        raise StateError(f"{doing}: {gist}") from error
