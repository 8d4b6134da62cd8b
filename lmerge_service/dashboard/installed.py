"""Whether the extra `dashboard` is installed; asks without loading it."""

from importlib.util import find_spec
from typing import Final

__all__ = ("MISSING", "is_installed")

MISSING: Final = (
    "the dashboard needs the extra 'dashboard': pip install 'lmerge-service[dashboard]'"
)


def is_installed() -> bool:
    """Whether it is."""
    return find_spec("nicegui") is not None
