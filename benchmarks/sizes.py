"""How much the benchmarks of the service merge: as asked for, or hardly anything, to try them."""

from dataclasses import dataclass

__all__ = ("TINY", "Sizes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Events are per replica; one that revises a fifth of them has some 1.2 elements of each."""

    events: int = 300_000
    snapshot_events: int = 2_000_000
    """For a backlog that takes longer than the default interval of snapshots."""
    snapshot_active: int = 100_000
    """Events live at a time, when snapshots are what is measured."""
    backlog: int = 1_000_000
    latency_seconds: float = 15
    warm_seconds: float = 10
    """Before that, not judged: a broker that has just started compiles its code."""
    rates: tuple[int, ...] = (333, 1_000, 33_334)
    """Elements a second of each replica, for added latency."""
    live: tuple[int, ...] = (10_000, 100_000)
    """Events live at a time, for recovery."""
    history_live: int = 20_000
    """The same where the length of history is what differs."""
    longer: int = 5
    """How many times longer the long history is."""
    watched: tuple[tuple[int, int, int], ...] = (
        (3, 1, 1),
        (20, 16, 1),
        (20, 16, 16),
        (100, 20, 64),
    )
    """Replicas, partitions of each and output partitions that an idle worker has."""
    asked: tuple[int, int] = (100, 10)
    """Replicas and partitions that two workers have which a dashboard asks: as many for each of
    them as for each of ten with 50 partitions."""
    idle_seconds: float = 20
    payload_bytes: int = 1_000
    """Of large payloads."""


TINY = Sizes(
    events=1_000,
    snapshot_events=2_000,
    snapshot_active=500,
    backlog=2_000,
    latency_seconds=2,
    warm_seconds=1,
    rates=(200, 400),
    live=(300,),
    history_live=200,
    watched=((3, 2, 2),),
    asked=(2, 2),
    idle_seconds=1,
    payload_bytes=200,
)
"""To see that all of it works."""
