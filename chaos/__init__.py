"""Faults on purpose, and the judge of what came of them.

The judge knows streams and records, and nothing of the service: it shares with it only the model
(elements, TDB) and the decoding of records.
"""

from chaos.history import History, Interval, Replica, check
from chaos.records import Record, Topic
from chaos.verdicts import Finding, Outcome, Report, worst

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
