"""Merges redundant replicas of a continuous query into one logically equivalent stream."""

from lmerge_service.core import lmerge, restore
from lmerge_service.elements import INFINITY, Adjust, Element, Insert, Stable
from lmerge_service.tdb import TDB, reconstitute

__all__ = (
    "INFINITY",
    "TDB",
    "Adjust",
    "Element",
    "Insert",
    "Stable",
    "lmerge",
    "reconstitute",
    "restore",
)
