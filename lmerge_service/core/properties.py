"""Stream properties: what a query plan guarantees of its output, and which case that allows.

Theory
    Which LMerge fits is decided before any element flows (paper IV-G, III-C). A source publishes
    a few properties, every operator of the plan turns the properties of what it reads into those
    of what it writes, and the properties at the top allow a case. The examples of IV-G:

    >>> ordered = StreamProperties(ordered=True, revises=False)
    >>> disordered = StreamProperties(revises=False)
    >>> print(ordered.windowed_aggregate().case, ordered.top_k().case)
    R0 R1
    >>> print(ordered.grouped_aggregate().case, disordered.grouped_aggregate().case)
    R2 R3
    >>> print(disordered.cleanse().case, StreamProperties().case)
    R1 R4

    A property is a promise that holds for every run of the plan. One that is absent is not known
    to hold, so the default promises nothing, and forgetting one costs speed but never
    correctness. Replicas are presupposed to be equivalent: an aggregate whose value depends on
    the order of its input (first, last, a sum of floats) over an input whose order differs has
    no equivalent replicas, and no case would help.

    The cases are a chain but the properties behind them are not: R1 needs no key and R2 no order
    of ties. What several inputs have in common is therefore the case of the properties that all
    of them have, and not the weakest of their cases:

    >>> ranked = StreamProperties(ordered=True, revises=False, deterministic_ties=True)
    >>> keyed = StreamProperties(ordered=True, revises=False, key=True)
    >>> print(ranked.case, keyed.case, weakest([ranked, keyed]))
    R1 R2 R4

Invariants
    S1  Properties are closed under implication: strictly ordered implies ordered, deterministic
        ties and key.
    S2  No operator claims what its output can lack, whatever the streams that have the claimed
        properties of its inputs (tests/core/test_choosing.py runs random plans).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from lmerge_service.core.case import Case

__all__ = ("StreamProperties", "weakest")


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamProperties:
    """What is promised of a stream; its methods are the operators of a plan, source first."""

    ordered: bool = False
    """vs never falls from one insert to the next."""
    strictly_ordered: bool = False
    """vs rises from each insert to the next. So no two inserts share a vs: there are no ties to
    be ordered, and (payload, vs) is a key even if ends are revised. Declaring this alone is enough
    (S1)."""
    revises: bool = True
    """There may be adjusts."""
    deterministic_ties: bool = False
    """The inserts of one vs come in the same order everywhere: in all replicas, not just in each
    run of this one. Two plans that sort ties by different rules don't have this in common."""
    key: bool = False
    """(payload, vs) is a key of every prefix: no two events that have both equal, at any time."""

    def __post_init__(self) -> None:
        if self.strictly_ordered:
            for implied in ("ordered", "deterministic_ties", "key"):
                object.__setattr__(self, implied, True)

    @property
    def case(self) -> Case:
        """The strongest case that the properties allow."""
        if self._final_in_order:
            if self.strictly_ordered:
                return Case.R0
            if self.deterministic_ties:
                return Case.R1
            if self.key:
                return Case.R2
        return Case.R3 if self.key else Case.R4

    @property
    def _final_in_order(self) -> bool:
        """All that is behind the last insert is known and stays."""
        return self.ordered and not self.revises

    # Operators of one input

    def filter(self) -> "StreamProperties":
        """Keeps the events whose payload and vs satisfy a predicate.

        All holds of a subsequence that holds of the whole. (A predicate on ve would turn adjusts
        into inserts.)
        """
        return self

    def project(self, *, one_to_one: bool = False) -> "StreamProperties":
        """Computes each payload from the payload before (project, map).

        Nothing moves, so order and ties stay. Two payloads may become one, and then the key is
        lost, unless the function is one to one, or there is one event for each vs anyhow.
        """
        return StreamProperties(
            ordered=self.ordered,
            strictly_ordered=self.strictly_ordered,
            revises=self.revises,
            deterministic_ties=self.deterministic_ties,
            key=self.key and one_to_one,
        )

    def alter_lifetime(
        self, starts: Literal["kept", "rounded", "any"] = "kept"
    ) -> "StreamProperties":
        """Computes new lifetimes from the old ones: windows, extended or clipped durations.

        By what becomes of vs:
        kept      it stays or is moved by a constant, so that all stays as well.
        rounded   it falls on a grid (hopping windows), or is another non-decreasing function of
                  the old vs. Order stays. Ties are runs of the old order: in an ordered stream
                  that run is the same everywhere if the old ties were. A at 1 and A at 2 both
                  begin at 0 now, so the key goes, and strict order.
        any       it may depend on ve: no order, and one event may meet another of its payload.
        """
        if starts == "kept":
            return self
        if starts == "rounded":
            return StreamProperties(
                ordered=self.ordered,
                revises=self.revises,
                deterministic_ties=self.ordered and self.deterministic_ties,
            )
        return StreamProperties(revises=self.revises)

    def cleanse(self, *, sorts_ties: bool = True) -> "StreamProperties":
        """Buffers events until they are fully frozen, and releases them in order of vs (VI-D).

        What is released is final, so there are no adjusts, and it is part of the input's TDB, so
        a key stays one. One event per vs before is one per vs after. Ties come in the same order
        everywhere if the cleanse `sorts_ties` by a total order of payloads that is the same
        everywhere, their canonical text for instance, and releases the events of one vs together
        (as `core.cleanse` does) or sorts by ve first. Else the shorter of two would go first
        where a stable came between their ends, and the lesser payload where none did.
        """
        return StreamProperties(
            ordered=True,
            strictly_ordered=self.strictly_ordered,
            revises=False,
            deterministic_ties=sorts_ties,
            key=self.key,
        )

    # Aggregates. Windows are such that they end in the order in which they start (tumbling,
    # hopping, sliding), and a result begins at a time that is its window's own.

    def windowed_aggregate(self, *, early: bool = False) -> "StreamProperties":
        """One result per window: a count, a sum, a maximum.

        Over a final input in order a window is final once an insert or a stable has passed it;
        its result is emitted once, and windows leave in order: one event per strictly rising vs,
        whatever ties or duplicates the input had.

        Otherwise, or if the plan emits `early` results, a result is taken back when it turns out
        wrong, and windows are emitted in any order. There is still one result per window at a time,
        as a plan takes out the old one before it puts in the new one: a key.

        A plan that waits for the input's stable before it emits anything (append mode) is a
        `cleanse` before the aggregate.
        """
        if self._final_in_order and not early:
            return StreamProperties(strictly_ordered=True, revises=False)
        return StreamProperties(key=True)

    def grouped_aggregate(self, *, early: bool = False) -> "StreamProperties":
        """One result per window and group, with the group in its payload.

        As for `windowed_aggregate`, but the results of one window leave in whatever order the
        groups have in memory. No two results of a window are equal, since the group is part of
        them: (payload, vs) is a key. (A projection that drops the group loses it.)

        Windows per group that end in another order than they start, such as sessions, give no
        order: their results are `StreamProperties(revises=False, key=True)` at best.
        """
        if self._final_in_order and not early:
            return StreamProperties(ordered=True, revises=False, key=True)
        return StreamProperties(key=True)

    def top_k(self, *, with_rank: bool = False, early: bool = False) -> "StreamProperties":
        """The k highest events of each window, emitted in order of rank.

        Rank must be a total order of (score, payload): then the results of a window are the same
        in the same order everywhere. Two results of one window may be equal, even where
        (payload, vs) is a key of the input, as a window spans several vs; unless each payload is
        emitted `with_rank`.
        """
        if self._final_in_order and not early:
            return StreamProperties(
                ordered=True, revises=False, deterministic_ties=True, key=with_rank
            )
        return StreamProperties(key=with_rank)

    # Operators of two inputs

    def union(
        self, other: "StreamProperties", *, in_order: bool = False, disjoint: bool = False
    ) -> "StreamProperties":
        """The events of both inputs.

        How two inputs interleave is chance, so order is lost, unless the union takes the lower
        vs first and waits for it (`in_order`); whose event is first at one vs stays chance. Both
        inputs may hold the same event, so the key is lost, unless no payload can come from
        either (`disjoint`).
        """
        return StreamProperties(
            ordered=in_order and self._final_in_order and other._final_in_order,
            revises=self.revises or other.revises,
            key=disjoint and self.key and other.key,
        )

    def join(
        self, other: "StreamProperties", *, in_order: bool = False, unique: bool = False
    ) -> "StreamProperties":
        """The pairs of events that match and overlap, for as long as both last.

        A pair begins when the later of the two does. If the join takes the lower vs of its
        inputs first (`in_order`), that is the vs of the event just taken, so order stays; else
        an input that lags makes pairs that begin earlier than what was emitted, and so does an
        event that is extended to meet others. A pair of final events is final. Several partners
        of one event come in any order: ties are lost.

        The key is lost: A from 1 to 9, A from 2 to 9 and B from 5 to 9 make (A, B) from 5 twice.
        Unless the payloads alive in an input are `unique` at every instant, in every prefix of
        both: then a pair (A, B) that begins at vs is of the one A and the one B alive at vs.
        """
        return StreamProperties(
            ordered=in_order and self._final_in_order and other._final_in_order,
            revises=self.revises or other.revises,
            key=unique,
        )


def weakest(properties: Iterable[StreamProperties]) -> Case:
    """The strongest case that all these inputs obey together, each having its properties.

    Raises:
        ValueError: there are no inputs.
    """
    inputs = list(properties)
    if not inputs:
        raise ValueError("no properties are given: there is nothing to choose a case by")
    return StreamProperties(
        ordered=all(each.ordered for each in inputs),
        strictly_ordered=all(each.strictly_ordered for each in inputs),
        revises=any(each.revises for each in inputs),
        deterministic_ties=all(each.deterministic_ties for each in inputs),
        key=all(each.key for each in inputs),
    ).case
