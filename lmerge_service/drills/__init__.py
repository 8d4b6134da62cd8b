"""Fault injection (drills), and the judge that checks the output of each run.

The judge is independent of the service: it shares only the model (elements, TDB) and the decoding
of records with it.
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
