"""Fault injection (drills), and the judge that checks the output of each run.

The judge is independent of the service: it shares only the model (elements, TDB) and the decoding
of records with it.
"""

from lmerge_service.drills.history import History, Interval, ReplicaHistory, check
from lmerge_service.drills.records import CommittedRecord, CommittedTopic
from lmerge_service.drills.verdicts import CheckResult, HistoryReport, Outcome, worst

__all__ = (
    "CheckResult",
    "CommittedRecord",
    "CommittedTopic",
    "History",
    "HistoryReport",
    "Interval",
    "Outcome",
    "ReplicaHistory",
    "check",
    "worst",
)
