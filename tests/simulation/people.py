"""Those who decide while a simulated run goes on: two persons, each through a control of their own.

Theory
    They attach, detach, cut over, quarantine, release, accept gaps and change the policy, in no
    good order: some of it makes no sense, and some is decided against a version that is over.
    Sometimes both decide at once, against the same version: then one of them must learn that the
    other came between. A decision whose outcome is unknown is made again, by whichever control, or
    given up.

    A replica that has been withdrawn may turn liar, but only once every task has carried that
    out: what it publishes then must never be seen. Its topic is not merged again, the name may be.

    What they do may leave nobody who has everything; then the output waits. In the end they see
    to it that there is somebody again, so that every run must come to its end.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

from lmerge_service.config.topology import Topology
from lmerge_service.core import Gap
from lmerge_service.drills.control_log_check import Answer
from lmerge_service.errors import TransportError
from lmerge_service.merge.decisions.control_log import LoggedControl
from lmerge_service.merge.decisions.cutover import CutoverState
from lmerge_service.merge.decisions.ledger import DesiredReplica, Entry
from lmerge_service.merge.decisions.records import (
    AbortCutover,
    AcceptGap,
    Action,
    Attach,
    BeginCutover,
    Decision,
    Detach,
    Quarantine,
    Release,
    SetPolicy,
    decide,
)
from lmerge_service.merge.replica_states import DesiredState
from lmerge_service.service.worker import Worker
from tests.simulation.actors import Publisher
from tests.simulation.adapter import carried_out, control_of
from tests.simulation.memory import Broker
from tests.simulation.network import Network, Weather

__all__ = ("People",)

_INSERTS = ("first", "leader", "half_frozen", "quorum(2)")
_ADJUSTS = ("lazy", "eager", "leader")
_STABLES = ("max", "max", "lag(3000)", "quorum(2)")
_PATIENCE_SECONDS = 60


@dataclass(slots=True)
class People:
    """Two persons."""

    topology: Topology
    broker: Broker
    chance: Random
    weather: Weather
    publishers: Mapping[str, Publisher]
    """By topic."""
    workers: Callable[[], Sequence[Worker]]
    """Those that run."""
    publish: Callable[[str, str, bool], Publisher]
    """Has a replica of a name publish to a topic; late, that is not correct from the beginning."""
    decisions: int
    """How many they make before they see to the end."""
    seen: Counter[str]
    answers: list[Answer] = field(default_factory=list)
    _controls: list[LoggedControl] = field(default_factory=list)
    _topics: int = 0

    async def run(self) -> None:
        """Until cancelled."""
        async with self._person("anna") as anna, self._person("ben") as ben:
            self._controls = [anna, ben]
            ways = [
                (self._withdraw, 5),
                (self._attach, 5),
                (self._release, 4),
                (self._change_policy, 2),
                (self._accept, 4),
                (self._turn, 3),
                (self._duel, 4),
                (self._corner, 2),
                (self._nonsense, 2),
                (self._cut_over, 8),
                (self._abort, 1),
            ]
            weights = [weight for _, weight in ways]
            for _ in range(self.decisions):
                await asyncio.sleep(self.chance.expovariate(1 / 2))
                await self.chance.choices(ways, weights)[0][0]()
            await self._see_to_the_end()

    @asynccontextmanager
    async def _person(self, name: str) -> AsyncGenerator[LoggedControl, None]:
        network = Network(self.broker, Random(self.chance.random()), self.weather, name=name)
        while True:
            try:
                control = await control_of(self.topology, network).__aenter__()
                break
            except TransportError:
                await asyncio.sleep(1)
        async with asyncio.TaskGroup() as group:
            following = group.create_task(control.run())
            try:
                yield control
            finally:
                following.cancel()
        await control.__aexit__()

    # --- deciding -------------------------------------------------------------------------------

    async def _decide(
        self, action: Action, *, against: int | None = None, by: LoggedControl | None = None
    ) -> Entry | None:
        """Decides, and again while there is no answer; None when it is given up."""
        decision = decide(action, "anna or ben", expects=against)
        for _ in range(self.chance.randint(1, 4)):
            controls = [each.control for each in self.workers() if each.control is not None]
            control = by or self.chance.choice([*self._controls, *controls])
            entry = await _asked(control, decision)
            if entry is not None:
                self._note(entry)
                return entry
        self.seen["given up"] += 1
        return None

    def _note(self, entry: Entry) -> None:
        refused = None if entry.refusal is None else entry.refusal.kind
        self.answers.append(Answer(entry.decision.id, entry.version, refused))
        action = type(entry.decision.action).__name__
        self.seen[action if entry.accepted else f"refused: {refused}"] += 1

    def _against(self) -> int | None:
        """A version to decide against: the one that is known, none, or one that is over."""
        version = self._controls[0].ledger.version
        return self.chance.choice([version, version, version, None, None, max(0, version - 1)])

    def _wanted(self, *states: DesiredState) -> list[DesiredReplica]:
        known = self._controls[0].ledger.replicas.values()
        return [each for each in known if each.state in states]

    # --- what they do ---------------------------------------------------------------------------

    def _withdrawal(self) -> Action | None:
        known = self._wanted(DesiredState.ATTACHED, DesiredState.ATTACHED, DesiredState.QUARANTINED)
        if not known:
            return None
        name = self.chance.choice(known).replica.name
        return Detach(name) if self.chance.random() < 0.5 else Quarantine(name, "to see")

    async def _withdraw(self) -> None:
        if action := self._withdrawal():
            await self._decide(action, against=self._against())

    async def _attach(self) -> None:
        gone = self._wanted(DesiredState.DETACHED)
        if gone and self.chance.random() < 0.8:
            await self._attach_again(self.chance.choice(gone))
        elif len(self._wanted(*DesiredState)) < 6:
            await self._attach_new(late=self.chance.random() < 0.6)

    async def _attach_again(self, gone: DesiredReplica) -> Entry | None:
        publisher = self.publishers[gone.replica.topic]
        if publisher.turned_at is not None or self.chance.random() < 0.2:
            publisher = self._published(gone.replica.name, late=False)
        return await self._decide(_attaching(publisher), against=self._against())

    async def _attach_new(self, *, late: bool) -> Publisher:
        publisher = self._published(f"n{self._topics}", late=late)
        await self._decide(_attaching(publisher))
        return publisher

    def _published(self, name: str, *, late: bool) -> Publisher:
        self._topics += 1
        return self.publish(name, f"in.{name}.{self._topics}", late)

    async def _release(self) -> None:
        out = self._wanted(DesiredState.QUARANTINED)
        out = [each for each in out if self._may_be_released(each.replica.name)]
        if not out:
            return
        each = self.chance.choice(out)
        late = each.replica.joining_at if self.chance.random() < 0.5 else None
        await self._decide(Release(each.replica.name, late), against=self._against())

    def _may_be_released(self, name: str) -> bool:
        """It is honest, and does not go on repeating what it published before the release, which
        its stables of that time would reveal as late. By whatever topic: which one it has may not
        be known here yet."""
        publishers = [each for each in self.publishers.values() if each.name == name]
        return all(p.turned_at is None and p.repeats != "repeats" for p in publishers)

    async def _change_policy(self) -> None:
        insert, adjust, stable = map(self.chance.choice, (_INSERTS, _ADJUSTS, _STABLES))
        await self._decide(SetPolicy(insert, adjust, stable), against=self._against())

    async def _accept(self) -> None:
        if (gap := self._gap()) is not None:
            await self._decide(AcceptGap(gap.input, gap.end), against=self._against())

    def _gap(self) -> Gap | None:
        """One that some worker shows."""
        for worker in self.workers():
            for held in worker.held.values():
                if held.role == "leads" and (gap := held.task.state.merge.gap) is not None:
                    return gap
        return None

    async def _turn(self) -> None:
        """Withdraws a replica, or attaches its name by another topic; the one that it had turns
        liar as soon as nobody listens any more."""
        action = self._withdrawal()
        entry = None if action is None else await self._decide(action)
        if entry is None or not entry.accepted:
            return
        assert isinstance(action, Detach | Quarantine)
        topic = self._controls[0].ledger.replicas[action.replica].replica.topic
        if isinstance(action, Detach) and self.chance.random() < 0.5:
            publisher = self._published(action.replica, late=False)
            entry = await self._decide(_attaching(publisher)) or entry
        await self._until_carried_out(entry.version)
        if carried_out(self.broker, self.topology) >= entry.version:
            self.publishers[topic].turn(self.broker, self.chance)
            self.seen["turned"] += 1

    async def _until_carried_out(self, version: int) -> None:
        """Or until it takes too long."""
        for _ in range(_PATIENCE_SECONDS):
            if carried_out(self.broker, self.topology) >= version:
                return
            await asyncio.sleep(0.5)

    async def _duel(self) -> None:
        """Both at once, against one version."""
        plain = SetPolicy("first", "lazy", "max")
        actions = [
            self._withdrawal() or plain
            if self.chance.random() < 0.5
            else SetPolicy(self.chance.choice(_INSERTS), "lazy", "max")
            for _ in self._controls
        ]
        version = self._controls[0].ledger.version
        await asyncio.gather(
            *(
                self._decide(action, against=version, by=control)
                for action, control in zip(actions, self._controls, strict=True)
            )
        )
        self.seen["duels"] += 1

    async def _corner(self) -> None:
        """Leaves only one that is late: there is a gap, if the output has not come so far."""
        late = await self._attach_new(late=True)
        for each in self._wanted(DesiredState.ATTACHED):
            if each.replica.name != late.name:
                await self._decide(Quarantine(each.replica.name, "to see"))
        await asyncio.sleep(self.chance.uniform(0, 20))
        if self.chance.random() < 0.7:
            await self._accept()

    async def _cut_over(self) -> None:
        """The one that leaves may turn liar once it is gone."""
        known = [each.replica.name for each in self._wanted(DesiredState.ATTACHED)]
        if not known:
            return
        leaving = self.chance.choice(known)
        topic = self._controls[0].ledger.replicas[leaving].replica.topic
        attach = None
        coming = self.chance.choice([*known, "nobody"])
        if self.chance.random() < 0.6:
            publisher = self._published(f"n{self._topics}", late=self.chance.random() < 0.5)
            attach, coming = _document(publisher), publisher.name
        action = BeginCutover(
            leaving,
            coming,
            watch=self.chance.choice([0, 0, 1_000, 20_000]),
            max_behind=self.chance.choice([0, 5, 60, 600]),
            max_divergences=self.chance.choice([0, 1_000]),
            attach=attach,
        )
        entry = await self._decide(action, against=self._against())
        if entry is None or not entry.accepted:
            return
        await self._until_over(entry.version)
        now = self._controls[0].ledger.cutover
        if now is None or now.began != entry.version or now.state is not CutoverState.DONE:
            return
        await self._until_carried_out(now.since)
        if carried_out(self.broker, self.topology) >= now.since:
            self.publishers[topic].turn(self.broker, self.chance)
            self.seen["turned after a cutover"] += 1

    async def _until_over(self, began: int) -> None:
        """Or until it takes too long."""
        for _ in range(self.chance.choice([1, _PATIENCE_SECONDS, _PATIENCE_SECONDS])):
            now = self._controls[0].ledger.cutover
            if now is not None and (now.began > began or not now.runs):
                self.seen[f"cutover {now.state}"] += 1
                return
            await asyncio.sleep(0.5)

    async def _abort(self) -> None:
        await self._decide(AbortCutover("to see"), against=self._against())

    async def _nonsense(self) -> None:
        name = self.chance.choice([*self._controls[0].ledger.replicas, "nobody"])
        actions: list[Action] = [Release(name), Quarantine(name, "to see"), AcceptGap(name, 5)]
        action = self.chance.choice(actions)
        if isinstance(action, Release) and not self._may_be_released(name):
            return
        await self._decide(action, against=self._against())

    # --- the end --------------------------------------------------------------------------------

    async def _see_to_the_end(self) -> None:
        """Lets the output wait for a while, if it must, and then attaches one that is whole."""
        while True:
            await asyncio.sleep(20)
            policy = self._controls[0].ledger.policy
            if "quorum" in policy.stable + policy.insert:
                await self._decide(SetPolicy("first", policy.adjust, "max"))
            elif not any(map(self._has_everything, self._wanted(DesiredState.ATTACHED))):
                gone = [e for e in self._wanted(DesiredState.DETACHED) if self._is_whole(e)]
                if gone and self.chance.random() < 0.7:
                    await self._decide(_attaching(self.publishers[gone[0].replica.topic]))
                else:
                    await self._attach_new(late=False)
                self.seen["rescues"] += 1

    def _is_whole(self, wanted: DesiredReplica) -> bool:
        return self.publishers[wanted.replica.topic].is_whole

    def _has_everything(self, wanted: DesiredReplica) -> bool:
        """After a release, what was stable before does not count any more."""
        return self._is_whole(wanted) and not wanted.released


async def _asked(control: LoggedControl, decision: Decision) -> Entry | None:
    """None without an answer: the outcome is unknown. The worker whose control it is may die."""
    asking = asyncio.create_task(control.decide(decision))
    try:
        await asyncio.wait({asking}, timeout=_PATIENCE_SECONDS)
    finally:
        asking.cancel()
    await asyncio.wait({asking})
    try:
        return asking.result()
    except (TransportError, asyncio.CancelledError):
        return None


def _attaching(publisher: Publisher) -> Attach:
    return Attach(_document(publisher))


def _document(publisher: Publisher) -> dict[str, Any]:
    return {
        "name": publisher.name,
        "topic": publisher.topic,
        "joining_at": publisher.correct_from,
        "co_partitioned": publisher.co_partitioned,
    }
