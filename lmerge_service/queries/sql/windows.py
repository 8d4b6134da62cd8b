"""TUMBLE and HOP: tables in windows, in the syntax of Flink SQL and of RisingWave.

    TABLE(TUMBLE(TABLE flights, DESCRIPTOR(time), INTERVAL '1' HOUR))
    HOP(flights, time, INTERVAL '20 MINUTES', INTERVAL '1 HOUR')

In both, HOP has the step first and the size behind it; a further argument moves the windows. An
interval may be a plain number, in the unit of the facts' times.
"""

from collections.abc import Mapping
from fractions import Fraction
from typing import Final

from sqlglot import exp

from lmerge_service.queries.logical import Elements, Grid, sources
from lmerge_service.queries.plan import Query, hopping, tumbling
from lmerge_service.queries.sql.parsing import refused

__all__ = ("UNITS", "WindowTable", "window_table")

UNITS: Final[Mapping[str, int]] = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
"""Units of facts' times: how many of each are a second."""
_SECONDS: Final = {
    "MILLISECOND": Fraction(1, 1_000),
    "SECOND": Fraction(1),
    "MINUTE": Fraction(60),
    "HOUR": Fraction(3_600),
    "DAY": Fraction(86_400),
    "WEEK": Fraction(604_800),
}
_SIZES: Final = {"TUMBLE": ("size",), "HOP": ("step", "size")}
_WINDOWS: Final = "TUMBLE and HOP are, and Python's windows(counting(n)) and windows(snapshots())"


class WindowTable:
    """A call of TUMBLE or HOP: its table, the column of its time, and its windows."""

    __slots__ = ("call", "grid", "table", "time")

    def __init__(self, call: exp.Anonymous, unit: str) -> None:
        name, arguments = call.name.upper(), list(call.expressions)
        if name not in _SIZES:
            raise refused(call, f"the table function {name}() is not supported: {_WINDOWS}")
        sizes = _SIZES[name]
        if not 0 <= len(arguments) - 2 - len(sizes) <= 1 or not _named(arguments[0]):
            wanted = ", ".join(("table", "time", *sizes))
            raise refused(call, f"{name}({wanted}[, offset]), with a table's name first")
        self.call = call
        self.table: exp.Column = arguments[0]
        self.time = _time(arguments[1])
        ticks = [_ticks(each, unit) for each in arguments[2:]]
        origin = ticks[len(sizes)] if len(ticks) > len(sizes) else 0
        self.grid: Grid = (
            tumbling(ticks[0], origin=origin)
            if name == "TUMBLE"
            else hopping(ticks[1], every=ticks[0], origin=origin)
        )

    def checked(self, query: Query) -> Query:
        """The query, if its times are those of the column that was named.

        Raises:
            SqlError: they are others.
        """
        times = {
            "vs" if isinstance(each, Elements) else each.time
            for each in sources(query.plan).values()
        }
        if self.time.name not in times:
            raise refused(
                self.time,
                f"{self.time.name} is not the time of {self.table.name}: that is "
                f"{' or '.join(sorted(times))}",
            )
        return query


def window_table(node: exp.Expr, unit: str) -> WindowTable | None:
    """The call that stands for a table, if one does."""
    if not isinstance(node, exp.Anonymous):
        return None
    if node.name.upper() == "TABLE" and len(node.expressions) == 1:
        return window_table(node.expressions[0], unit)
    return WindowTable(node, unit)


def _named(node: exp.Expr) -> bool:
    return isinstance(node, exp.Column) and not node.table


def _time(node: exp.Expr) -> exp.Column:
    called = isinstance(node, exp.Anonymous) and node.name.upper() == "DESCRIPTOR"
    found = node.expressions[0] if called and len(node.expressions) == 1 else node
    if not isinstance(found, exp.Column):
        raise refused(node, "name the column of the time, as DESCRIPTOR(time) or time")
    return found


def _ticks(node: exp.Expr, unit: str) -> int:
    """A duration in the unit of the facts' times."""
    text = str(node.this.this if isinstance(node, exp.Interval) else node.this)
    try:
        amount = Fraction(text)
    except ValueError:
        raise refused(node, f"{text!r} is no number of one unit, as INTERVAL '90' MINUTE") from None
    if not isinstance(node, exp.Interval):
        found = amount
    else:
        name = (node.unit.name if node.unit is not None else "SECOND").upper()
        if (seconds := _SECONDS.get(name.removesuffix("S"))) is None:
            raise refused(node, f"the unit {name} has no fixed length here: WEEK to MILLISECOND do")
        found = amount * seconds * UNITS[unit]
    if found.denominator != 1:
        raise refused(node, f"{node.sql()} is no whole number of {unit}, the unit of the times")
    return int(found)
