"""The temporal database of a merged stream as a table in Delta Lake's format: what was true when,
and what was known when (docs/table.md)."""

from lmerge_service.spark.table.compact import compact
from lmerge_service.spark.table.read import known_at, true_at
from lmerge_service.spark.table.update import update_table

__all__ = ("compact", "known_at", "true_at", "update_table")
