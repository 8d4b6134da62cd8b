"""The workload of the paper's evaluation (VI-B), and the sub-query that makes its adjusts.

Theory
    Each event is an integer of [0, 400] and a string of 1,000 bytes; application time goes on by
    a random gap of up to 20 s (`MaxGap`) from event to event; a lifetime (`EventDuration`) is such
    that a twentieth of the events is active at a time, as 10,000 of the paper's 200,000 are. An
    element is followed by a stable with probability `StableFreq`, and a share `Disorder` of the
    elements comes late. Replicas are presentations of the same events, each with disorder and
    stables of its own.

    That yields no adjusts; queries do. `counted` is the paper's example, an aggregate (count)
    followed by a change of lifetime: per group of integers and window of time the events are
    counted, and the result stands from the start of its window for as long as that many
    lifetimes. It is speculative: a result is emitted when application time leaves its window, and
    a late event revises it. With windows of 10, a hold of 100 and one group:

        insert(a,1) insert(b,4)     ->
        insert(c,12)                -> insert(result, 0, 200)       two in [0, 10)
        insert(d,7)                 -> adjust(result, 0, 200→300)   a third, late
        stable(15)                  -> stable(10)

    So a revision moves a result's end, and a merge can leave out the ends in between, as the
    paper reports. With `count_in_payload` it is another event instead: the old one is removed, the
    new one inserted. Then there is nothing in between to leave out, for no two of them are alike.

Invariants
    W1  The output of `counted` is a legal stream, and what it means depends on the events that
        were counted and not on their order: presentations in, presentations out.
"""

from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from json import loads
from typing import Final, TypeAlias

from lmerge_service.elements import INFINITY, START, Adjust, Element, Insert, Stable
from lmerge_service.workloads.generator import workload
from lmerge_service.workloads.presentation import Variation, timed

__all__ = (
    "MEAN_GAP",
    "SECOND",
    "Batches",
    "Timed",
    "counted",
    "disordered",
    "in_time",
    "ordered",
    "sub_query",
    "with_own_payloads",
)

SECOND: Final = 1_000
MEAN_GAP: Final = 10 * SECOND
"""Application time from one event to the next, in milliseconds, on average."""
_PAYLOAD_BYTES: Final = 1_000
_GROUPS: Final = 41
_WINDOW: Final = 60 * MEAN_GAP
"""1.5 events a group and window: with 50 % disorder 36 % of what `counted` emits are adjusts."""

Timed: TypeAlias = list[tuple[int, Element]]
"""The elements of one input with the application times of their sending, which never fall."""
Batches: TypeAlias = list[tuple[int, list[Element]]]
"""What arrives, in order: (number of the input, its elements)."""


def ordered(events: int, inputs: int, stable_freq: float = 0.01) -> list[Timed]:
    """Presentations in order of vs, which rises strictly, and without adjusts: any case will do."""
    lives = list(workload(events=events, active=events // 20, min_gap=1))
    variation = Variation(stable_probability=stable_freq)
    return [list(timed(lives, variation, f"ordered {number}")) for number in range(inputs)]


def disordered(
    events: int,
    lags: Sequence[int],
    *,
    disorder: float = 0.2,
    stable_freq: float = 0.01,
    lifetime: int | None = None,
) -> list[Timed]:
    """Per lag, in application time, a presentation out of order and without adjusts.

    Late elements come up to 20 mean gaps late. `lifetime` is in milliseconds; None means that a
    twentieth of the events is active.
    """
    active = events // 20 if lifetime is None else max(1, lifetime // MEAN_GAP)
    lives = list(workload(events=events, active=active))
    return [
        list(timed(lives, _disorder(disorder, 20, stable_freq, lag), f"disordered {number}"))
        for number, lag in enumerate(lags)
    ]


def sub_query(
    events: int,
    inputs: int,
    *,
    disorder: float = 0.5,
    stable_freq: float = 0.001,
    count_in_payload: bool = False,
) -> list[Timed]:
    """What `counted` makes of presentations whose late elements are late by windows."""
    lives = list(workload(events=events, active=events // 20, payload_bytes=0))
    variation = _disorder(disorder, 5 * _WINDOW // MEAN_GAP, stable_freq, 0)
    hold = max(events // 20 * MEAN_GAP, _WINDOW)
    return [
        list(
            counted(
                timed(lives, variation, f"sub-query {number}"),
                hold=hold,
                count_in_payload=count_in_payload,
            )
        )
        for number in range(inputs)
    ]


def _disorder(share: float, gaps: int, stable_freq: float, lag: int) -> Variation:
    return Variation(
        disorder=share,
        displacement=gaps * MEAN_GAP,
        stable_probability=stable_freq,
        lag=lag,
    )


def counted(
    stream: Iterable[tuple[int, Element]],
    *,
    window: int = _WINDOW,
    hold: int,
    groups: int = _GROUPS,
    count_in_payload: bool = False,
) -> Iterator[tuple[int, Element]]:
    """Counts a stream of inserts per group and window; see the module's text.

    `window` and `hold`, the time that a result stands for each event in it, are in the stream's
    unit. Windows begin at multiples of `window`.

    Raises:
        ValueError: hold < window; a revision could then touch what a stable made final.
    """
    if hold < window:
        raise ValueError(f"a result must stand for a window at least, got {hold} < {window}")
    count = _Count(window, hold, groups, count_in_payload)
    for at, element in stream:
        if type(element) is Insert:
            emitted = count.event(element)
        else:
            assert type(element) is Stable, f"counts inserts, got {element}"
            emitted = count.stable(element.vc)
        for each in emitted:
            yield at, each


class _Count:
    """The state of `counted`: how many events each group has in each window not yet final."""

    def __init__(self, window: int, hold: int, groups: int, count_in_payload: bool):
        self._window = window
        self._hold = hold
        self._groups = groups
        self._count_in_payload = count_in_payload
        self._counts: dict[int, dict[int, int]] = {}  # start of the window -> group -> events
        self._current = START
        """The start of the window that application time is in: no later results are emitted."""
        self._stable = START

    def event(self, element: Insert[bytes]) -> Iterator[Element]:
        start = element.vs - element.vs % self._window
        if start > self._current:
            yield from self._leave_windows_before(start)
        group = loads(element.payload)["key"] % self._groups
        counts = self._counts.setdefault(start, {})
        counts[group] = counts.get(group, 0) + 1
        if start < self._current:
            yield from self._revise(start, group, counts[group])

    def stable(self, c: int) -> Iterator[Element]:
        """Events from c on may still come, so windows from the one of c on are not final."""
        reached = INFINITY if c == INFINITY else c - c % self._window
        if reached > self._current:
            yield from self._leave_windows_before(reached)
        for start in [start for start in self._counts if start < reached]:
            del self._counts[start]
        if reached > self._stable:
            self._stable = reached
            yield Stable(reached)

    def _leave_windows_before(self, start: int) -> Iterator[Element]:
        for group, n in self._counts.get(self._current, {}).items():
            yield self._result(self._current, group, n)
        self._current = start

    def _revise(self, start: int, group: int, n: int) -> Iterator[Element]:
        result = self._result(start, group, n)
        if n == 1:
            yield result
            return
        old = self._result(start, group, n - 1)
        if self._count_in_payload:
            yield Adjust(old.payload, start, old.ve, start)
            yield result
        else:
            yield Adjust(old.payload, start, old.ve, result.ve)

    def _result(self, start: int, group: int, n: int) -> Insert[bytes]:
        return Insert(self._payload(group, n), start, start + n * self._hold)

    def _payload(self, group: int, n: int) -> bytes:
        """The group, with the string of 1,000 bytes that a table of groups has for it."""
        counted = b'"count":%d,' % n if self._count_in_payload else b""
        return b'{%b"data":"%b","key":%d}' % (counted, _text_of(group), group)


def _text_of(group: int) -> bytes:
    digest = sha256(b"%d" % group).hexdigest().encode()
    return (digest * (_PAYLOAD_BYTES // len(digest) + 1))[:_PAYLOAD_BYTES]


def in_time(streams: Sequence[Timed], span: int = 100 * MEAN_GAP) -> Batches:
    """The streams beside each other: a batch is what one input sends in `span`, as a poll is."""
    slots: dict[tuple[int, int], list[Element]] = {}
    for number, stream in enumerate(streams):
        for at, element in stream:
            slots.setdefault((at // span, number), []).append(element)
    return [(number, slots[slot, number]) for slot, number in sorted(slots)]


def with_own_payloads(elements: Iterable[Element]) -> list[Element]:
    """The same elements with payloads that nobody else holds: what decoding gives each input."""
    return [_with_own_payload(element) for element in elements]


def _with_own_payload(element: Element) -> Element:
    match element:
        case Insert(payload, vs, ve):
            return Insert(bytes(memoryview(payload)), vs, ve)
        case Adjust(payload, vs, vold, ve):
            return Adjust(bytes(memoryview(payload)), vs, vold, ve)
    return element
