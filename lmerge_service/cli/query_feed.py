"""`lmerge query feed`: facts for queries to read."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import typer

from lmerge_service.cli.options import (
    KafkaOptions,
    Partitions,
    Seed,
    argument,
    check_topic,
    flag,
    option,
)
from lmerge_service.cli.present import months_of
from lmerge_service.cli.streams import watched

if TYPE_CHECKING:
    from lmerge_service.workloads.facts import Fact

__all__ = ("feed",)


def feed(
    topic: str = argument("TOPIC", "Must be new."),
    flights: str = option(
        "MONTHS", "The flights that left New York in 2013: 1 or 1,2 or year.", default="1"
    ),
    partitions: Partitions = 1,
    rate: float | None = option(
        "N", "Facts a second.", min=0.1, show_default="as fast as it goes", default=None
    ),
    late: float = option("FRACTION", "Facts that come late.", min=0, max=1, default=0.0),
    late_by: int = option("SECONDS", "By how much at the most.", min=1, default=600),
    seed: Seed = 1,
    open_: bool = flag("Do not end the topic: more may follow.", "--open"),
    *,
    kafka: KafkaOptions,
) -> None:
    """Publish what becomes known of flights and weather, in the order in which it does.

    It is what the queries of topologies/flights.py are about: schedules, cancellations, departures,
    arrivals, measurements.

    Example: `lmerge query feed flights.facts --flights 1 --rate 5000`
    """
    import asyncio

    from lmerge_service.kafka.feed import feed as send
    from lmerge_service.workloads.facts import disordered, facts

    check_topic(topic)
    months = months_of(flights)

    def disordered_facts() -> "Iterator[Fact]":  # once the topic is found to be new
        found = facts(months)
        yield from disordered(found, late, late_by * 1000, seed) if late else found

    stream = watched(topic, disordered_facts())
    sending = send(
        kafka.connection(), topic, stream, rate=rate, partitions=partitions, ended=not open_
    )
    sent = asyncio.run(sending)
    typer.echo(f"{sent:,} facts are in {topic}", err=True)
