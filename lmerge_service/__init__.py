"""Merges redundant replicas of a continuous query into one logically equivalent stream."""

from lmerge_service.core import Policy, StreamProperties, lag, lmerge, quorum, restore, weakened
from lmerge_service.elements import INFINITY, Adjust, Element, Insert, Stable
from lmerge_service.tdb import TDB, reconstitute

__all__ = (
    "INFINITY",
    "TDB",
    "Adjust",
    "Element",
    "Insert",
    "Policy",
    "Stable",
    "StreamProperties",
    "lag",
    "lmerge",
    "quorum",
    "reconstitute",
    "restore",
    "weakened",
)
