"""The LMerge operators: pure, synchronous, and ignorant of Kafka, clocks and logs."""

from lmerge_service.core.base import Gap, LMerge
from lmerge_service.core.breaches import DIVERGENT, Breach, BreachKind
from lmerge_service.core.case import Case
from lmerge_service.core.factory import Restoring, lmerge, restore, restore_parts, weakened
from lmerge_service.core.inputs import Input
from lmerge_service.core.policy import Policy, lag, quorum
from lmerge_service.core.properties import StreamProperties
from lmerge_service.core.stats import Stats

__all__ = (
    "DIVERGENT",
    "Breach",
    "BreachKind",
    "Case",
    "Gap",
    "Input",
    "LMerge",
    "Policy",
    "Restoring",
    "Stats",
    "StreamProperties",
    "lag",
    "lmerge",
    "quorum",
    "restore",
    "restore_parts",
    "weakened",
)
