"""Queries for `lmerge query run tests/replicas/sample_queries.py:NAME`, of each kind of plan."""

from collections.abc import Sequence
from typing import Any

from lmerge_service.queries.expressions import col
from lmerge_service.queries.plan import (
    count,
    elements,
    facts,
    hopping,
    max_,
    sum_,
)

FIELDS = {"id": int, "kind": str, "at": str, "n": int}


def explode(row: Sequence[Any]) -> list[tuple[int]]:
    """A user's function with a mistake in it."""
    if row[3] == 13:
        raise ValueError("thirteen")
    return [(row[3],)]


calls = facts("calls", time="time", fields=FIELDS, ends=col.kind == "end", lateness=60)
sky = facts("sky", time="time", fields=FIELDS, ends=col.kind == "end", lateness=60)
keyed = facts("calls", time="time", fields=FIELDS, ends=col.kind == "end", lateness=60, key="id")

windows = (
    calls.where(col.kind == "call")
    .windows(hopping(60, every=20))
    .by("at")
    .aggregate(calls=count(), n=sum_("n"), most=max_("n"))
)
bag = calls.where(col.n > 1).select("at", "kind")  # case R4: equal events
alive = calls.where(col.kind == "call").extend(50).by("at").aggregate(alive=count())
everything = calls.aggregate(seen=count())
joined = (
    calls.where(col.kind == "call")
    .window(40)
    .select("at", "n")
    .join(sky.window(80).select("at", wind=col.n), on="at")
)
latest = calls.by("at").last_rows(1)
once = keyed.select("id", "at")
raising = calls.flat_map(f"{__name__}:explode", {"n": int})
busy = elements("windows", {"at": str, "calls": int, "n": int, "most": int}).where(col.calls > 1)
peak = (
    elements("windows", {"at": str, "calls": int, "n": int, "most": int})
    .by("at")
    .aggregate(most=max_("calls"))
)
