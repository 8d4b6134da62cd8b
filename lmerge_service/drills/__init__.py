"""Faults on purpose, and the judge of what came of them.

The judge knows streams and records, and nothing of the service: it shares with it only the model
(elements, TDB) and the decoding of records.
"""

from lmerge_service.drills.history import History, Interval, Replica, check
from lmerge_service.drills.records import Record, Topic
from lmerge_service.drills.verdicts import Finding, Outcome, Report, worst

__all__ = (
    "Finding",
    "History",
    "Interval",
    "Outcome",
    "Record",
    "Replica",
    "Report",
    "Topic",
    "check",
    "worst",
)
