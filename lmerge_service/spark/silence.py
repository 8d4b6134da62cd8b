"""Silences messages of Spark that are of no use.

For each stateful query Spark runs a Python process of its own to ask for the query's variables.
That process prints every step to its standard output, which the JVM passes on. The message of the
first step, printed before our modules are imported, is removed from the JVM's standard error.
"""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

__all__ = ("filtered_stderr", "silence_stdout")

_MODULE: Final = ".transform_with_state_driver_worker"
_FIRST: Final = b"Starting Streaming TransformWithStateInPandas Python worker.\n"
_STDERR: Final = 2


def silence_stdout() -> None:
    """Called by modules of stateful processors on import: silences that process from there on."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is not None and spec.name.endswith(_MODULE):
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 (for as long as it lives)


@contextmanager
def filtered_stderr() -> Iterator[int]:
    """A file to be the standard error of a JVM that is started: what the JVM writes there goes to
    ours, line by line, without the message of that first step."""
    reading, writing = os.pipe()
    threading.Thread(target=_copy, args=(reading,), name="Spark's stderr", daemon=True).start()
    try:
        yield writing
    finally:
        os.close(writing)


def _copy(reading: int) -> None:
    with os.fdopen(reading, "rb") as lines:
        left_out = False
        for line in lines:
            left_out = line == _FIRST or (left_out and line == b"\n")  # an empty line follows
            if not left_out:
                os.write(_STDERR, line)
