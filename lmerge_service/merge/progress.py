"""What a task has done since its process began; what is counted never falls."""

from collections import Counter, deque
from dataclasses import dataclass, field

from lmerge_service.elements import START
from lmerge_service.merge.durations import Durations

__all__ = ("TaskProgress",)


@dataclass(slots=True)
class TaskProgress:
    """What this process has done; its counts never fall, whatever is rebuilt."""

    published: Counter[str] = field(default_factory=Counter)
    """Committed inserts, adjusts (removals among them, and counted apart) and stables."""
    transactions: int = 0
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
    committing: float | None = None
    """Since when a commit has been under way (the clock's seconds); None: none is."""
    unwritten: Counter[str] = field(default_factory=Counter)
    """`dead_letters` and `events` that their topic did not take, while the output went on."""
    table: Counter[str] = field(default_factory=Counter)
    """Committed `rows` and `removals` of the output's table."""
    table_whole: bool = False
    """It had all events that are live at the last commit."""
    left_out: float | None = None
    """When records were left out last (the clock's seconds)."""
    unheeded: Counter[str] = field(default_factory=Counter)
    """By replica, records and markers that its topic has got since it was detached."""
    loss: str | None = None
    """The last events that were lost, in words."""
    lost_at: float | None = None
    """When that was found (the clock's seconds)."""
