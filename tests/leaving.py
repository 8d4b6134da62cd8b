"""What a program leaves when it has ended."""

import os
from collections.abc import Sequence
from pathlib import Path

import psutil

__all__ = ("left_behind",)


def left_behind(folder: Path) -> Sequence[str]:
    """Processes that have the folder in their command line or as working directory."""
    found = []
    for process in psutil.process_iter(["pid", "cmdline", "cwd"]):
        words = [*(process.info["cmdline"] or []), process.info["cwd"] or ""]
        if process.info["pid"] != os.getpid() and any(str(folder) in word for word in words):
            found.append(" ".join(words))
    return found
