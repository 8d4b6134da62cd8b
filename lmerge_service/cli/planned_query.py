"""Which query a command runs by which of its plans, and between which topics."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from lmerge_service.cli.options import Partitions, option
from lmerge_service.cli.query_target import QueryTarget
from lmerge_service.errors import ConfigurationError

if TYPE_CHECKING:
    from lmerge_service.queries.physical import PhysicalPlan
    from lmerge_service.queries.plan import Query

__all__ = ("PlannedQuery",)


@dataclass(frozen=True, slots=True)
class PlannedQuery:
    """The options that all commands have which run a query as a replica."""

    target: QueryTarget
    to: Annotated[str, option("TOPIC", "Where to publish; made if missing.")]
    plan: Annotated[int, option("K", "By which plan (`lmerge query explain`).", min=1)] = 1
    topic: Annotated[
        list[str] | None,
        option(
            "SOURCE=TOPIC",
            "Read a source from this topic. [default: the topic of its name]",
            show_default=False,
        ),
    ] = None
    partitions: Partitions = 1

    def physical(self, query: "Query") -> "PhysicalPlan":
        """The plan of that number.

        Raises:
            ConfigurationError: the query has none.
        """
        from lmerge_service.queries.plan_numbering import numbered_plans

        plans = numbered_plans(query)
        if self.plan > len(plans):
            raise ConfigurationError(
                f"{self.target.target} has no plan {self.plan}: there are {len(plans)} "
                "(`lmerge query explain`)"
            )
        return plans[self.plan - 1]

    def topics(self, query: "Query") -> dict[str, str]:
        """The topics that are named for sources, as `SOURCE=TOPIC`.

        Raises:
            ConfigurationError: one is not, or two sources would be one topic.
        """
        from lmerge_service.queries import logical

        sources, found = logical.sources(query.plan), dict[str, str]()
        for each in self.topic or ():
            name, equals, topic = each.partition("=")
            if not equals:
                raise ConfigurationError(f"--topic {each}: give SOURCE=TOPIC")
            if name not in sources:
                there = ", ".join(sources)
                raise ConfigurationError(f"--topic {each}: the query reads {there}, not {name}")
            found[name] = topic
        topics = [found.get(name, name) for name in sources]
        if len(set(topics)) < len(topics):
            raise ConfigurationError("--topic: two sources cannot be one topic")
        return found
