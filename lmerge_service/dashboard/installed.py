"""Whether the extra `dashboard` is installed; asks without loading it."""

from importlib.util import find_spec

__all__ = ("is_installed",)


def is_installed() -> bool:
    """Whether it is."""
    return find_spec("nicegui") is not None
