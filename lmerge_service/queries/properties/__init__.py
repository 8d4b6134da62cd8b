"""What is known of a plan before it runs: which events are apart, what a late joiner needs, which
case of LMerge its replicas allow, how its facts may be divided, and whether Spark's own aggregation
can compute it. A module per question.
"""

from lmerge_service.queries.properties.history import (
    has_exact_starts,
    joining_at,
    required_history,
)
from lmerge_service.queries.properties.keys import Keys, keys
from lmerge_service.queries.properties.native import check_native, is_native
from lmerge_service.queries.properties.partitioning import partition_columns
from lmerge_service.queries.properties.streams import case, stream_properties, why

__all__ = (
    "Keys",
    "case",
    "check_native",
    "has_exact_starts",
    "is_native",
    "joining_at",
    "keys",
    "partition_columns",
    "required_history",
    "stream_properties",
    "why",
)
