"""Guards: a replica's stables are checked before they are merged, so that one cannot harm all.

Theory
    An output's stable point never goes back. So a stable that is too high is the one element of a
    replica that no later element can correct: all others would be late, for good. Comparing it with
    where the others *are* would not do, since honest replicas are far apart: one is read ahead of
    the others in a backlog, one is slow, one is silent. What they have in common is that they
    *advance* through time in steps. So a stable(t) is suspicious if

    clock_skew   t lies more than `max_skew` ahead of the wall clock, where times are times of
                 day. This holds in a replay too: what is replayed lies in the past.
    leap         t lies more than `max_leap` ahead of the *front*, the highest stable of any
                 replica that was merged. How far replicas are apart does not matter: a fast
                 reader's own stables move the front along.
    early_end    t is INFINITY, and nothing has ended yet.

    The first is absolute, and its replica is quarantined. The other two may be honest (a week-end
    without data, a fast replica of a finite stream), so they are *held*: not merged, nor what is
    behind them in their partition, until

    * another replica has come as far (of a leap: within `max_leap`; its own stable may be held
      as well: two replicas that agree are believed), or
    * there is nobody to wait for: every other replica has ended, or never wrote anything, or has
      nothing unread and has made no progress (`liveness`, also of transactions that end) for
      `patience_seconds`, or is held itself, at a lower stable.

    *Unread* are the records of its topic up to the high watermark, open transactions included: they
    may be all that the replica has published. It is known only from a look-up of the topic that
    began after the stable was held and after patience was over: what came since the look-up before
    it, in a transaction that is open, shows nowhere else.

        patience 5 s   a: stable(9), silent    b: ins ins (open)         → a's end is held
                       a: stable(∞)            b: ins ins, open for 40 s → held
                                               b: ins ins (aborted)      → held for 5 s more
                                               b: nothing unread         → a's end is merged

    A person who knows better detaches a replica that is gone for good, so that nobody waits for it;
    or quarantines and releases the replica itself, which reads it again without the stables that it
    has published so far.

        max_leap 100     a: stable(50)                → merged, front 50
                         a: stable(9000)              → held: b goes on
                         b: stable(60) … stable(8950) → a's is merged

    Of several that may go, a confirmed one goes first, and then the one with the highest stable
    before it: an early end is the one that comes after little. So an honest leap costs waiting
    for a second opinion, nobody is quarantined for it, and replicas that are all held don't wait
    for each other for ever.
    Under `stable=quorum(k)`, k > 1, the policy itself is the second opinion: nothing is held.

    What cannot be detected: the first stable of all is checked by the clock only; a replica that
    runs away in steps below `max_leap`, in times that are no time of day, looks like a fast one.

    `breach_monitor` checks what shows over many records. A replica that no other could replace is
    not quarantined for its conduct, only reported: the output would stand still.

Invariants
    G1  A held or refused stable has not been merged, and does not influence later verdicts.
    G2  Verdicts are a function of what was merged (stables: `attach` gives them again) and of the
        clocks passed in. Held records are read again after a restart and checked again; conduct
        starts from nothing, and so does patience unless `attach` is given a `Liveness`.

Cost
    A stable: some comparisons; one that is suspicious: O(replicas). Other elements: nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lmerge_service.config.topology import Topology
from lmerge_service.core import BreachKind
from lmerge_service.elements import INFINITY, START
from lmerge_service.kafka.unread import Unread
from lmerge_service.merge.decoding import Contradiction, Outdated
from lmerge_service.merge.guards.breach_monitor import BreachMonitor, ChunkFindings, chunk_of
from lmerge_service.merge.guards.verdicts import (
    Action,
    Guard,
    HeldStable,
    Verdict,
    of_contradiction,
    of_held,
    of_outdated,
)
from lmerge_service.merge.liveness import Liveness

__all__ = ("Guards", "Now", "chunk_of")


@dataclass(frozen=True, slots=True)
class Now:
    """The clocks, read once for a batch."""

    unix_ns: int
    """Nanoseconds since the epoch: what replicas' times are compared with."""
    seconds: float
    """Monotonic: for patience."""


class _Seen:
    """What is known of one incarnation of a replica."""

    __slots__ = (
        "conduct",
        "held",
        "living",
        "stables",
        "unread",
    )

    def __init__(self, stables: list[int], conduct: BreachMonitor, living: Liveness) -> None:
        self.stables = stables
        self.conduct = conduct
        self.held: dict[int, HeldStable] = {}
        self.living = living
        self.unread: Unread | None = None

    @property
    def merged(self) -> int:
        """How far it is by what was merged."""
        return min(self.stables)

    @property
    def claim(self) -> int:
        """Its stable point, including stables that wait for a second opinion."""
        return self._with_held(Guard.LEAP, Guard.EARLY_END)

    @property
    def leapt(self) -> int:
        """The same without held ends: the end of a replica confirms no leap."""
        return self._with_held(Guard.LEAP)

    def _with_held(self, *guards: Guard) -> int:
        stables = list(self.stables)
        for number, held in self.held.items():
            if held.guard in guards:
                stables[number] = held.vc
        return min(stables)

    def know_unread(self, unread: Unread | None, now: Now) -> None:
        self.unread = unread
        if unread is not None:
            self.living.know_unread(unread, now.seconds)

    def is_awaited(self, patience: float | None, held_since: float) -> bool:
        """It may still publish something before its end, as far as is known since then."""
        if self.claim == INFINITY:
            return False
        unread = self.unread
        if unread is None or unread.records or unread.asked_at < held_since:
            return True
        return self._is_alive(unread.asked_at, patience)

    def could_stand_in(self, now: Now, patience: float | None) -> bool:
        """It could carry the output alone: it has something to be read, or made progress lately."""
        if self.claim == INFINITY:
            return False
        if self.unread is None or self.unread.readable:
            return True
        return self._is_alive(now.seconds, patience)

    def _is_alive(self, at: float, patience: float | None) -> bool:
        if not (self.living.progressed or max(self.stables) > START):
            return False
        return patience is None or at - self.living.at <= patience


class Guards:
    """Of one task; see the module's text. `stable` before each, `after` behind each chunk."""

    def __init__(self, topology: Topology, front: int = START) -> None:
        """`front` is a stable that was merged, of whomever: the output's will do."""
        self._settings = topology.guards
        self._case = topology.resolved_case
        self._unit = topology.unit_nanoseconds
        self._skew, self._leap = topology.max_skew, topology.max_leap
        self._alone = topology.policy.policy().voters == 1
        self._replicas: dict[str, _Seen] = {}
        self._front = front
        self._going: set[HeldStable] = set()

    # --- replicas -----------------------------------------------------------------------------

    def attach(
        self,
        replica: str,
        stables: list[int],
        now: Now,
        breaches: Mapping[BreachKind, int] | None = None,
        living: Liveness | None = None,
    ) -> None:
        """A replica, or a new incarnation of it, or one as a rebuild has left it: the stables of
        its partitions as they were merged, the breaches that are no news, and its progress, which
        whoever has it updates; None: it begins now."""
        conduct = BreachMonitor(self._settings, self._case, stables)
        conduct.start_from(breaches or {})
        self.detach(replica)
        seen = _Seen(list(stables), conduct, living or Liveness(now.seconds))
        self._replicas[replica] = seen
        self._advance(seen, *seen.stables)

    def widen(self, replica: str, partitions: int) -> None:
        """The replica's topic has got more partitions."""
        seen = self._replicas[replica]
        seen.stables += [START] * (partitions - len(seen.stables))
        seen.conduct.widen(partitions)

    def detach(self, replica: str) -> None:
        """It is quarantined, excluded or gone: nobody waits for it."""
        self._replicas.pop(replica, None)
        self._going = {each for each in self._going if each.replica != replica}

    def know_unread(self, replica: str, unread: Unread | None, now: Now) -> None:
        """What of its topic was not read; None: unknown, so there may be something."""
        if (seen := self._replicas.get(replica)) is not None:
            seen.know_unread(unread, now)

    # --- stables ------------------------------------------------------------------------------

    def stable(
        self, replica: str, partition: int, vc: int, offset: int, now: Now
    ) -> Verdict | None:
        """Judges a stable that is about to be merged; None: merge it."""
        seen = self._replicas[replica]
        guard = self._suspicion(vc, now) if vc > seen.stables[partition] else None
        if guard is not None:
            held = HeldStable(replica, partition, offset, vc, guard, now.seconds)
            held = seen.held.setdefault(partition, held)
            if held not in self._going and not self._goes(held):
                return self._refuse(held, now)
        self._pass(seen, partition, vc)
        return None

    def calm(self, replica: str, partition: int, now: Now) -> int:
        """Up to here stables of a partition are certain to be merged, and its chunk goes on behind
        each of them, until the next `after`: they need no `stable`, and go to `passed`."""
        seen = self._replicas[replica]
        if partition in seen.held or seen.conduct.watches(partition):
            return START
        until = INFINITY - 1
        if self._unit and self._skew:
            until = min(until, now.unix_ns // self._unit + self._skew)
        if self._leap and self._alone:  # the front will not fall; where there is none, it may rise
            until = min(until, self._front + self._leap) if self._front > START else START
        return until

    def passed(self, replica: str, partition: int, stables: Sequence[int]) -> None:
        """Takes stables that are about to be merged and that were `calm`."""
        seen, highest = self._replicas[replica], max(stables)
        seen.conduct.stables(partition, stables)
        if highest > seen.stables[partition]:
            seen.stables[partition] = highest
            self._advance(seen, highest)

    def _suspicion(self, vc: int, now: Now) -> Guard | None:
        if vc == INFINITY:
            early = self._settings.early_end and self._alone and self._front < INFINITY
            return Guard.EARLY_END if early else None
        if self._unit and self._skew and vc > now.unix_ns // self._unit + self._skew:
            return Guard.SKEW
        if self._leap and self._alone and START < self._front < vc - self._leap:
            return Guard.LEAP
        return None

    def _pass(self, seen: _Seen, partition: int, vc: int) -> None:
        seen.conduct.stables(partition, (vc,))
        if (held := seen.held.pop(partition, None)) is not None:
            self._going.discard(held)
        if vc > seen.stables[partition]:
            seen.stables[partition] = vc
            self._advance(seen, vc)

    def _advance(self, seen: _Seen, *stables: int) -> None:
        """These were merged. An end of one partition is no end of its replica, and must not hide a
        replica's early end behind it."""
        ended = seen.merged == INFINITY
        self._front = max(self._front, *(vc for vc in stables if vc < INFINITY or ended), START)

    def _goes(self, held: HeldStable) -> bool:
        """It may go now. A confirmed one goes before one that merely has nobody to wait for; among
        equals, the one behind the higher stable."""
        reason = self._reason_to_go(held)
        own = self._replicas[held.replica].merged
        for other in self.held():
            if reason and other.replica != held.replica:
                others = self._reason_to_go(other)
                better = self._replicas[other.replica].merged > own and other.vc >= held.vc
                if others > reason or (others == reason and better):
                    return False
        return reason > 0

    def _reason_to_go(self, held: HeldStable) -> int:
        """2: another replica agrees. 1: there is nobody to wait for. 0: none."""
        if held.guard is Guard.SKEW:
            return 0
        others = [seen for name, seen in self._replicas.items() if name != held.replica]
        if held.guard is Guard.EARLY_END:
            confirmed = any(seen.claim == INFINITY for seen in others)
        else:
            confirmed = any(seen.leapt >= held.vc - self._leap for seen in others)
        if confirmed:
            return 2
        return 0 if self.awaited(held.replica, held.since) else 1

    def awaited(self, replica: str, held_since: float) -> tuple[str, ...]:
        """For whom a stable of a replica waits that is held since then."""
        own, patience = self._replicas[replica].merged, self._settings.patience_seconds
        return tuple(
            name
            for name, seen in self._replicas.items()
            if name != replica
            and seen.is_awaited(patience, held_since)
            and not (seen.held and seen.merged < own)
        )

    def held(self) -> tuple[HeldStable, ...]:
        """The stables that wait, for status and metrics."""
        return tuple(each for seen in self._replicas.values() for each in seen.held.values())

    def let_go(self) -> tuple[HeldStable, ...]:
        """Held stables that may be merged now: read their partitions again from their offsets on.

        To be asked after each poll.
        """
        going = [each for each in self.held() if each in self._going or self._goes(each)]
        self._going.update(going)
        return tuple(going)

    # --- conduct ------------------------------------------------------------------------------

    def watches(self, replica: str, partition: int) -> bool:
        """Whether chunks of this partition should end at each stable; else as `chunk_of` gives."""
        return self._replicas[replica].conduct.watches(partition)

    def after(
        self,
        replica: str,
        partition: int,
        records: int,
        breaches: Mapping[BreachKind, int],
        dead: int,
        now: Now,
    ) -> tuple[Verdict, ...]:
        """After a chunk of one partition was merged; usually nothing.

        `breaches` are all of the replica's incarnation so far, the others are of the chunk.
        """
        conduct = self._replicas[replica].conduct
        found = conduct.after(partition, records, breaches, dead)
        return self._judged(replica, found, now) if found else ()

    def contradicted(
        self, replica: str, partition: int, found: Contradiction, count: int, now: Now
    ) -> tuple[Verdict, ...]:
        """After a record was merged that is another one than was read under its number, of so many
        so far. It is reported the 1st, 2nd, 4th, 8th … time, and when a second writer is likely."""
        conduct, verdicts = self._replicas[replica].conduct, []
        if count.bit_count() == 1:
            claims = self._claims_beside(replica)
            verdicts.append(of_contradiction(replica, partition, found, count, claims))
        if conduct.contradicted():
            quarantine = self._settings.duplicate_writer == "quarantine"
            verdicts.append(
                self._conduct(
                    Guard.DUPLICATE_WRITER, quarantine, replica, now,
                    "again and again its records contradict what was read under their numbers: "
                    "two producers seem to write its topic",
                    "stop one of them, then release it",
                )
            )  # fmt: skip
        return tuple(verdicts)

    def outdated(
        self, replica: str, partition: int, run: Outdated, incarnation: int
    ) -> tuple[Verdict, ...]:
        """After records of an older incarnation were left out behind those of the latest."""
        claims = self._claims_beside(replica)
        return (of_outdated(replica, partition, run, incarnation, claims),)

    def _claims_beside(self, replica: str) -> dict[str, int]:
        return {name: seen.claim for name, seen in self._replicas.items() if name != replica}

    def _judged(self, replica: str, found: ChunkFindings, now: Now) -> tuple[Verdict, ...]:
        settings = self._settings
        verdicts = []
        if found.divergences:
            beyond = 0 < settings.max_divergences < found.divergences
            verdicts.append(
                self._conduct(
                    Guard.DIVERGENCE, beyond, replica, now,
                    f"it contradicts what the output has made final, {found.divergences} times",
                    "compare the topics (`lmerge audit kafka:A kafka:B`); the liar may be another",
                )
            )  # fmt: skip
        if found.two_writers:
            verdicts.append(
                self._conduct(
                    Guard.DUPLICATE_WRITER, settings.duplicate_writer == "quarantine", replica, now,
                    "its elements are repeated and its stables go back and forth: two producers "
                    "seem to write its topic",
                    "stop one of them, then release it",
                )
            )  # fmt: skip
        elif found.breaches:
            verdicts.append(
                self._conduct(
                    Guard.BREACH_RATE, True, replica, now,
                    f"{found.breaches} of its latest {found.records} records break the rules, "
                    f"more than {settings.max_breaches} in 1,000",
                    "look at its dead letters and breaches, mend the replica, then release it",
                )
            )  # fmt: skip
        return tuple(verdicts)

    def _conduct(
        self, guard: Guard, quarantine: bool, replica: str, now: Now, reason: str, remedy: str
    ) -> Verdict:
        others = {name: seen for name, seen in self._replicas.items() if name != replica}
        patience = self._settings.patience_seconds
        if quarantine and not any(each.could_stand_in(now, patience) for each in others.values()):
            quarantine = False
            reason += "; it is merged on, since no other replica could take its place"
        action = Action.QUARANTINE if quarantine else Action.REPORT
        claims = {name: each.claim for name, each in others.items()}
        return Verdict(guard, action, replica, reason, remedy, others=claims)

    def _refuse(self, held: HeldStable, now: Now) -> Verdict:
        others = {n: seen.claim for n, seen in self._replicas.items() if n != held.replica}
        clock = held.guard is Guard.SKEW
        base = now.unix_ns // (self._unit or 1) if clock else self._front
        return of_held(held, held.vc - base, others, self._settings.patience_seconds)
