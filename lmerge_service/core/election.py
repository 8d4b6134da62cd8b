"""Which inputs decide: about the stable point, about an event, and who is followed instead.

Theory
    About a stable point the joined inputs with the highest stables decide: one, or under
    `stable=quorum(k)` k of them, of whom the lowest gives the point (`next_stable`).

    About an event the deciding inputs, the *voters*, may have different versions. Each version
    gets the votes of those who have it, and the one with most is the output's; ties go to the
    voter that was attached first. Whoever has another version, or lacks the event, is to blame:

        a: (A,6,7)   b: (A,6,9)   c: (A,6,9)   ->   b is followed, a is to blame
        a: (A,6,7)   b: (A,6,9)   c: -         ->   a is followed, b and c are to blame

    Where the leader contradicts what is half frozen, the event follows a *second opinion*: of the
    inputs that the output may still follow, the one that is most advanced.

    What a version is, and which inputs have one, is for the case to define.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence

from lmerge_service.core.breaches import BreachKind
from lmerge_service.core.inputs import Input
from lmerge_service.elements import INFINITY, START

__all__ = ("elected", "leaders", "next_stable", "outvoted", "second_opinion")


def next_stable(inputs: Iterable[Input], voters: int, lag: int) -> tuple[int, Sequence[Input]]:
    """The stable point that so many voters give, in application time, and who they are, the
    highest first; ties go to the input attached first. A single voter's is reduced by `lag`,
    except at the end of the stream. START and no voters: too few inputs are joined.

    Complexity: O(inputs), with several voters O(inputs lg inputs).
    """
    joined = [source for source in inputs if source.joined]
    if len(joined) < voters:
        return START, ()
    if voters == 1:
        leader = max(joined, key=_stable_of)
        behind = lag if leader.stable < INFINITY else 0
        return leader.stable - behind, (leader,)
    deciding = sorted(joined, key=_stable_of, reverse=True)[:voters]
    return deciding[-1].stable, deciding


def leaders(inputs: Iterable[Input]) -> list[Input]:
    """The joined inputs with the highest stable, in the given order; there may be several."""
    joined = [each for each in inputs if each.joined]
    highest = max((each.stable for each in joined), default=START)
    return [each for each in joined if each.stable == highest]


def elected(views: Mapping[Input, Hashable]) -> Input:
    """The first voter of those whose version of an event, its view, most voters share.

    Raises:
        ValueError: nobody has a view.
    """
    votes = Counter(views.values())
    return max(views, key=lambda source: votes[views[source]])


def outvoted(
    voters: Iterable[Input],
    views: Mapping[Input, Hashable],
    winner: Input | None,
    lacks: Callable[[Input], bool],
) -> Iterator[tuple[Input, BreachKind]]:
    """The voters to blame, and for what: one that lacks the event (or some of its events), or one
    that has another view than the winner, or none. Without a winner each is to blame."""
    for source in voters:
        if lacks(source):
            yield source, BreachKind.HALF_FROZEN_MISSING
        elif source not in views or winner is None or views[source] != views[winner]:
            yield source, BreachKind.FROZEN_END_DISAGREES


def second_opinion(sources: Iterable[Input]) -> Input | None:
    """Of inputs that the output may follow, in order of attaching, the one with the highest stable;
    one that is still joining counts last. None: there is none."""
    return max(sources, key=lambda source: (source.joined, source.stable), default=None)


def _stable_of(source: Input) -> int:
    return source.stable
