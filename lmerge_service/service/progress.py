"""What a task has done since its process began; what is counted never falls."""

from collections import Counter, deque
from dataclasses import dataclass, field

from lmerge_service.elements import START
from lmerge_service.service.durations import Durations

__all__ = ("Progress",)


@dataclass(slots=True)
class Progress:
    """What this process has done; its counts never fall, whatever is rebuilt."""

    elements_in: int = 0
    published: Counter[str] = field(default_factory=Counter)
    """Committed inserts, adjusts (removals among them, and counted apart) and stables."""
    transactions: int = 0
    switches: int = 0
    """How often the leading replica changed."""
    committed_stable: int = START
    latencies: deque[float] = field(default_factory=lambda: deque(maxlen=2_000))
    """Seconds from a batch's read to its commit, latest last."""
    commits: Durations = field(default_factory=Durations)
    """The same of all, in buckets."""
    recovery_seconds: float | None = None
    """How long it took the last time until the task was led; None: it never was."""
    takeovers: int = 0
    """How often this process has begun to lead, the first time among them."""
    rebuilds: int = 0
    fences: int = 0
    """How often another producer had taken the output over while this one led."""
    snapshots: Counter[str] = field(default_factory=Counter)
    """`taken` and `failed`."""
    snapshot_seconds: float | None = None
    """How long the last one took that this process has taken, until it was all committed."""
    caught_up: float | None = None
    """When what is followed was asked for the last time with success (the clock's seconds): all
    that was committed by then is in the state."""
    unreachable: str | None = None
    """Why Kafka does not answer at the moment."""
