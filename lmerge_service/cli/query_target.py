"""Which query a command is about: one of a file, or a statement over a file's queries."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from lmerge_service.cli.options import argument, option
from lmerge_service.errors import ConfigurationError

if TYPE_CHECKING:
    from lmerge_service.queries.plan import Query

__all__ = ("QueryTarget",)


@dataclass(frozen=True, slots=True)
class QueryTarget:
    """`FILE:NAME`, or `FILE --sql STATEMENT`, whose tables are the queries of the file."""

    target: Annotated[
        str,
        argument(
            "FILE:NAME",
            "A query in a Python file, or as package.module:NAME; with --sql, the FILE alone.",
        ),
    ]
    sql: Annotated[
        str | None,
        option("SELECT", "A statement instead; its tables are the queries of FILE.", "--sql"),
    ] = None
    unit: Annotated[
        str, option("UNIT", "Of the times of the facts, for INTERVAL: s, ms, us or ns.", "--unit")
    ] = "ms"

    @property
    def place(self) -> str:
        """The file, or the module."""
        return self.target if self.sql is not None else self.target.rpartition(":")[0]

    def query(self) -> "Query":
        """The query.

        Raises:
            ConfigurationError: there is none; the message has the place in the file, or in the
                statement.
        """
        from lmerge_service.queries.loading import load, queries_in

        if self.sql is None:
            return load(self.target)
        from lmerge_service.queries.sql.statements import query_over

        if not (tables := queries_in(self.target)):
            raise ConfigurationError(f"{self.target} has no queries, which --sql has as its tables")
        return query_over(self.sql, tables, unit=self.unit)
