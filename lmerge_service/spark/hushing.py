"""Spark's words on the way, which nobody asked for.

Of each query Spark asks for its variables in a process of its own, which tells of every step on its
standard output, and the JVM hands that on. The first step, where nothing of ours is imported yet,
is left out of what the JVM says.
"""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

__all__ = ("heard", "silence_stdout")

_MODULE: Final = ".transform_with_state_driver_worker"
_FIRST: Final = b"Starting Streaming TransformWithStateInPandas Python worker.\n"
_STDERR: Final = 2


def silence_stdout() -> None:
    """For modules of stateful processors, as they are imported: ends what that process tells."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is not None and spec.name.endswith(_MODULE):
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 (for as long as it lives)


@contextmanager
def heard() -> Iterator[int]:
    """A file that a JVM is started with as its standard error: all that it says there is said here,
    line by line, but for that first step."""
    reading, writing = os.pipe()
    threading.Thread(target=_say, args=(reading,), name="Spark's stderr", daemon=True).start()
    try:
        yield writing
    finally:
        os.close(writing)


def _say(reading: int) -> None:
    with os.fdopen(reading, "rb") as said:
        left_out = False
        for line in said:
            left_out = line == _FIRST or (left_out and line == b"\n")  # an empty line follows
            if not left_out:
                os.write(_STDERR, line)
