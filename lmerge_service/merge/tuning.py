"""Settings of the interpreter, and of its allocator, for a process that merges."""

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

__all__ = ("quieten_garbage_collector", "return_large_blocks", "without_garbage_collector")

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_LARGE_BYTES: Final = 256 << 10
_SPARE_BYTES: Final = 4 << 20


def return_large_blocks() -> None:
    """Has the C library return to the system what was fetched and is not needed any more.

    By itself glibc takes ever larger blocks from the heap once some were freed, where small ones
    behind them keep them: fetches of 2 MB a partition cost a worker 30 MB in that way. Elsewhere
    (musl, macOS) there is no such setting, and nothing is changed.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(_M_MMAP_THRESHOLD, _LARGE_BYTES)
        set_option(_M_TRIM_THRESHOLD, _SPARE_BYTES)


@contextmanager
def without_garbage_collector() -> Iterator[None]:
    """While a large state is read, which makes no cycles: scanning it takes as long again.

    What is there afterwards is never scanned, since the next collection would begin at once.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def quieten_garbage_collector() -> None:
    """Elements and nodes hold no cycles; scanning them over and over costs a third of the rate.

    To be called when everything is imported, which is most of what there is to scan; not in a
    hurry: it takes a tenth of a second and more. Whatever is large and in cycles is to be collected
    by whoever lets go of it.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 100)
