"""How a replica behaves over many records: breach rate, divergence, a second writer.

Theory
    *What counts.* Breaches by which a replica contradicts itself (`_OWN`), and dead letters. Not:
    duplicate keys and stable regressions, which harm nothing (a replica may repeat itself, and
    tiny regressions are common); nor disagreement with the output (`DIVERGENT`), since where a
    liar led before, it is the honest replica that disagrees. That is reported apart.

    *A restart that repeats is no liar.* A replica that repeats itself without announcing it breaks
    its own stable with every element, and then its stables regress. So breaches wait for the
    stables behind them: if these regress, they were repeats and are forgotten; if these rise,
    they count. One chunk later is soon enough, since a breach has harmed nothing:

        stable(90) ins(3) ins(4) stable(4) … stable(90) stable(95)    a repeat: nothing counts
        stable(90) ins(3) stable(91) ins(5) stable(92)                lies: two breaches

    *Two writers* send everything twice, and the topic's stables go back and forth for ever. An
    *alternation* is a rise behind stables that did not rise (*echoes*); it is *doubled* if
    elements were repeated on the way. A restart makes one of those; honest repeats of stables, or
    tiny regressions, make alternations that are not doubled. `_DOUBLED` of the last `_KEPT`, with
    a quarter of their stables echoes, is no restart any more (a replica that restarts often makes
    progress in between, and its share of echoes is small).

        A and B, B behind: stable(10) stable(20) stable(10) stable(30) stable(20) stable(40) …

    Two writers that number their records contradict each other's numbers again and again; a
    restart does so once. `_DOUBLED` contradictions within the window are no restart any more.

Invariants
    U1  The verdicts are a function of the chunks given and of nothing else: no clock. All of it
        may be lost at a restart; then the counting starts from nothing.

Cost
    O(1) per stable and per chunk; per partition a few numbers and at most `_KEPT` alternations.
    Counting which elements were repeated between which stables needs chunks that end at stables.
    That costs too much always, so it is asked for (`watches`) when a chunk held both.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from lmerge_service.config.topology import GuardSettings
from lmerge_service.core import DIVERGENT, BreachKind, Case
from lmerge_service.elements import START

__all__ = ("BreachMonitor", "ChunkFindings", "SlidingCounts", "chunk_of")

_CHUNK: Final = 1_000
_CHUNK_OF_BATCHES: Final = 4_000
"""Python decodes a chunk and merges it while it is in the processor's caches; for the engine, which
takes a tenth of the time, what is done for each chunk would be half of all."""

_OWN: Final = frozenset(
    {
        BreachKind.BROKE_CASE,
        BreachKind.MALFORMED,
        BreachKind.BROKE_OWN_STABLE,
        BreachKind.UNKNOWN_EVENT,
        BreachKind.WRONG_VOLD,
    }
)

_BLOCKS = 16
_KEPT, _DOUBLED = 8, 5
_WATCHED_STABLES = 32


def chunk_of(records: Sequence[Any]) -> int:
    """How many of these records at most are merged before guards look at what came of them."""
    return _CHUNK if type(records) is list else _CHUNK_OF_BATCHES


class SlidingCounts:
    """Counts over the latest `size` records, in blocks, so that it is small and slides evenly."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._blocks: deque[tuple[int, int]] = deque()
        self.records = self.breaches = 0

    def add(self, records: int, breaches: int) -> None:
        """Counts records and the breaches among them; what is older than `size` records goes."""
        self.records += records
        self.breaches += breaches
        if self._blocks and self._blocks[-1][0] + records <= self._size // _BLOCKS:
            last = self._blocks.pop()
            records, breaches = last[0] + records, last[1] + breaches
        self._blocks.append((records, breaches))
        while self.records - self._blocks[0][0] >= self._size:
            old = self._blocks.popleft()
            self.records -= old[0]
            self.breaches -= old[1]

    def clear(self) -> None:
        """Starts over with no records."""
        self._blocks.clear()
        self.records = self.breaches = 0


@dataclass(slots=True)
class _Partition:
    highest: int = START
    repeating: bool = False
    """The stables have regressed and not risen since."""
    risen: int = 0
    regressed: bool = False
    """They did so in this chunk, or had when it began."""
    stables: int = 0
    waiting: int = 0
    """Breaches up to the last chunk that held a stable: they count if the next one rises."""
    fresh: int = 0
    """Breaches since."""
    rises: int = 0
    echoes: int = 0
    repeats: int = 0
    """Since the last alternation: stables that rose, that did not, repeated elements."""
    turns: int = 0
    """Alternations in this chunk."""
    watched: int = 0
    """Stables for which chunks are to end at stables."""
    alternations: deque[tuple[bool, int, int]] = field(default_factory=lambda: deque(maxlen=_KEPT))
    """(doubled, rises, echoes)."""


@dataclass(frozen=True, slots=True)
class ChunkFindings:
    """What a chunk showed; zeros and False where nothing."""

    breaches: int = 0
    """In the window, when they are too many."""
    records: int = 0
    divergences: int = 0
    """So many so far, when there are new ones."""
    two_writers: bool = False

    def __bool__(self) -> bool:
        return bool(self.breaches or self.divergences or self.two_writers)


_NOTHING: Final = ChunkFindings()


class BreachMonitor:
    """Of one incarnation of a replica in one task."""

    def __init__(self, settings: GuardSettings, case: Case, stables: list[int]) -> None:
        # In R1 an element may break the case because another replica was wrong before.
        self._own = _OWN - {BreachKind.BROKE_CASE} if case is Case.R1 else _OWN
        self._repeated = _OWN | {BreachKind.DUPLICATE_KEY}
        self._settings = settings
        self._window = SlidingCounts(settings.breach_window)
        self._partitions = [_Partition(highest) for highest in stables]
        self._known: dict[BreachKind, int] = {}
        self._total = 0
        self._divergences = 0
        self._records = 0
        self._contradictions: deque[int] = deque(maxlen=_DOUBLED)
        """After how many records the latest came."""

    def widen(self, partitions: int) -> None:
        """The replica's topic has got more partitions: so many now."""
        self._partitions += [_Partition() for _ in range(partitions - len(self._partitions))]

    def start_from(self, breaches: Mapping[BreachKind, int]) -> None:
        """What had been counted before is no news."""
        self._news(breaches)

    def watches(self, partition: int) -> bool:
        """Chunks of this partition should end at each stable, for now."""
        return self._partitions[partition].watched > 0

    def stables(self, partition: int, stables: Iterable[int]) -> None:
        """Stables that are about to be merged, in order."""
        part = self._partitions[partition]
        for vc in stables:
            part.stables += 1
            if vc <= part.highest:
                part.echoes += 1
                part.regressed |= vc < part.highest
                part.repeating |= vc < part.highest
                continue
            part.highest = vc
            part.repeating = False
            part.risen += 1
            part.rises += 1
            part.turns += part.echoes > 0

    def after(
        self, partition: int, records: int, breaches: Mapping[BreachKind, int], dead: int = 0
    ) -> ChunkFindings:
        """After a chunk of one partition was merged.

        `breaches` are all of this incarnation so far, `records` and `dead` those of the chunk.
        """
        part = self._partitions[partition]
        news = self._news(breaches)
        self._records += records
        self._window.add(records, dead)
        part.fresh += sum(count for kind, count in news.items() if kind in self._own)
        part.repeats += sum(count for kind, count in news.items() if kind in self._repeated)
        if part.stables:
            self._settle(part)
            self._alternate(part)
            part.stables = part.risen = part.turns = 0
            part.regressed = part.repeating
        divergences = sum(count for kind, count in news.items() if kind in DIVERGENT)
        self._divergences += divergences
        return self._findings(part, divergences > 0)

    def contradicted(self) -> bool:
        """After a record contradicted what was read under its number; whether two writers seem to
        do that to each other."""
        latest = self._contradictions
        latest.append(self._records)
        if len(latest) < _DOUBLED or latest[-1] - latest[0] > self._settings.breach_window:
            return False
        latest.clear()
        return True

    def _news(self, breaches: Mapping[BreachKind, int]) -> dict[BreachKind, int]:
        total = sum(breaches.values())
        if total == self._total:  # as nearly always
            return {}
        known, self._known, self._total = self._known, dict(breaches), total
        return {kind: count - known.get(kind, 0) for kind, count in breaches.items()}

    def _settle(self, part: _Partition) -> None:
        """Decides about the breaches that waited for these stables."""
        if part.regressed:
            part.waiting = part.fresh = 0
        elif part.risen:
            self._window.add(0, part.waiting)
            part.waiting, part.fresh = part.fresh, 0

    def _alternate(self, part: _Partition) -> None:
        if part.watched:
            part.watched -= part.stables
        if not part.turns:
            if part.risen:
                part.repeats = 0
            return
        if part.repeats and part.watched <= 0:
            part.watched = _WATCHED_STABLES
        if part.turns == part.risen == part.stables:  # the chunk ended at this very stable
            doubled = part.repeats > 0
            part.alternations.append((doubled, part.rises, part.echoes))
            if doubled:
                part.watched = _WATCHED_STABLES
        part.rises = part.echoes = part.repeats = 0

    def _findings(self, part: _Partition, diverged: bool) -> ChunkFindings:
        window, settings = self._window, self._settings
        doubled = sum(each[0] for each in part.alternations) if part.alternations else 0
        two = doubled >= _DOUBLED and self._echo_share_is_high(part)
        many = (
            settings.max_breaches > 0
            and window.breaches >= settings.min_breaches
            and window.breaches * 1_000 > settings.max_breaches * window.records
        )
        if not (many or two or diverged):
            return _NOTHING
        found = ChunkFindings(
            breaches=window.breaches if many else 0,
            records=window.records,
            divergences=self._divergences if diverged else 0,
            two_writers=two or (many and doubled > 1),
        )
        if many:
            window.clear()
        if two:
            part.alternations.clear()
        return found

    @staticmethod
    def _echo_share_is_high(part: _Partition) -> bool:
        rises = sum(each[1] for each in part.alternations)
        echoes = sum(each[2] for each in part.alternations)
        return 4 * echoes >= rises + echoes
