"""Whether Spark's own aggregation can compute a query: counts, sums of ints, least and greatest
values in windows of a grid, over selected and computed columns of facts.

    >>> from lmerge_service.queries.expressions import col
    >>> from lmerge_service.queries.plan import average, count, facts, tumbling
    >>> flights = facts("flights", time="time", fields={"origin": str, "delay": int})
    >>> hourly = flights.windows(tumbling(60)).by("origin")
    >>> counted, averaged = hourly.aggregate(n=count()), hourly.aggregate(m=average("delay"))
    >>> is_native(counted.plan), is_native(averaged.plan)
    (True, False)
"""

from typing import Final

from lmerge_service.errors import ConfigurationError
from lmerge_service.queries import logical
from lmerge_service.queries.rows import Kind
from lmerge_service.queries.sql_text import is_sql
from lmerge_service.queries.trees import inferred

__all__ = ("check_native", "is_native")

_AGGREGATES: Final = ("count", "count_of", "sum", "min", "max")


def is_native(plan: logical.Node) -> bool:
    """Whether Spark's own aggregation can compute it."""
    try:
        check_native(plan)
    except ConfigurationError:
        return False
    return True


def check_native(plan: logical.Node) -> logical.Windows:
    """The windows that a plan is, if Spark can compute it.

    Raises:
        ConfigurationError: it can't; the message names what does not fit.
    """

    def refuse(what: str) -> ConfigurationError:
        return ConfigurationError(f"--native: {what}: leave it out to run the plan's own operators")

    if not isinstance(plan, logical.Windows) or not isinstance(plan.results, tuple):
        raise refuse("a native plan ends with the aggregates of windows of a grid")
    if plan.grid.every > plan.grid.size:
        raise refuse("its windows leave gaps")
    below = logical.schema_of(plan.of)
    for name, each in plan.results:
        if each.function not in _AGGREGATES:
            raise refuse(f"{name} is no count, sum, min or max")
        if each.of is not None and not is_sql(each.of):
            raise refuse(f"{name} calls a function of Python")
        if each.function == "sum" and each.of and inferred(each.of, below) is not Kind.INT:
            raise refuse(f"{name} adds floats, which Spark rounds as it goes")
    node = plan.of
    while isinstance(node, logical.Select | logical.Project):
        trees = [node.where] if isinstance(node, logical.Select) else [t for _, t in node.columns]
        if not all(map(is_sql, trees)):
            raise refuse("it calls a function of Python")
        node = node.of
    if not isinstance(node, logical.Source) or node.until is not None:
        raise refuse("its windows are over more than selected columns of facts")
    if node.key:
        raise refuse(f"{node.name} drops duplicates by {', '.join(node.key)}")
    return plan
