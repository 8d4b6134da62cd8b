"""Spark's words on the way, which nobody asked for."""

import os
import sys
from pathlib import Path

__all__ = ("hush",)


def hush() -> None:
    """For modules of stateful processors, as they are imported: of each query Spark asks for its
    variables in a process of its own, which tells of every step on its standard output."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is not None and spec.name.endswith(".transform_with_state_driver_worker"):
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 (for as long as it lives)
