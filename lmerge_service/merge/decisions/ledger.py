"""The ledger: what the control log makes of a merge, the same for everybody who reads it.

Theory
    The decisions of the log (`records`) are folded in its order. One that is accepted makes the
    next version; one that is refused changes nothing, and its entry has the reason:

        offset 0  declare a, b                   accepted   version 1
               1  detach b   expects 1           accepted   version 2
               2  attach c   expects 1           refused    version 2: "detach b" came between
               3  not JSON                       unreadable, counted
               4  detach b   the id of offset 1  a producer's second try: nothing new
               5  attach c   expects 2           accepted   version 3

    The content of a worker's topology file is itself a decision, `declare`, which a worker makes
    when it starts with a file that differs from the last one. So the verdicts depend on the log
    alone, however many workers run with however many files. A declaration rules only
    replicas about which nothing else was decided.

    A *fold* (`folds`) carries the ledger of all records before it. A ledger that lacks some of them
    takes it over, so that it need not read them; one that has them compares it.

    The topology itself defines which combinations are valid: a decision is accepted when the one
    that it leads to, with the replicas that are attached or quarantined, is valid.

Invariants
    G1  Folding never raises, whatever a record holds; the same records give the same ledger.
    G2  The version is the number of accepted decisions.
    G3  An attachment's epoch is the version that began it: another epoch is another attachment.
    G4  What is kept is bounded: the last 1,000 decisions, of 2 MiB together, the last 1,000 gaps,
        and beside the replicas that are desired or declared 1,000 that are not.
    G5  A cutover that runs obeys C3 (`cutover`): a decision that would break it ends it.
    G6  A ledger that began with a fold is the one that all records give (F2).

Cost
    A decision costs a validation of the topology, some 0.1 ms.
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, TypeAlias, assert_never

from pydantic import ValidationError

from lmerge_service.config.topology import OutputPolicy, Replica, Topology
from lmerge_service.core.properties import weakest
from lmerge_service.elements import START
from lmerge_service.errors import ElementError, fault_message
from lmerge_service.merge.decisions import folds
from lmerge_service.merge.decisions.cutover import Cutover, CutoverEvent, CutoverState, move
from lmerge_service.merge.decisions.decided import (
    AcceptedGap,
    DecisionRefusal,
    DesiredReplica,
    Entry,
    OutputIncarnation,
    RefusalKind,
)
from lmerge_service.merge.decisions.folds import Fold, LedgerState
from lmerge_service.merge.decisions.records import (
    AbortCutover,
    AcceptGap,
    Attach,
    BeginCutover,
    Decision,
    Declare,
    Detach,
    Quarantine,
    Release,
    ReportCutover,
    RestartOutput,
    SetPolicy,
    decode,
    encode,
    words,
)
from lmerge_service.merge.replica_states import DesiredState, ReplicaEvent, desired_after

__all__ = (
    "AcceptedGap",
    "DecisionRefusal",
    "DesiredReplica",
    "Entry",
    "Ledger",
    "OutputIncarnation",
    "RefusalKind",
    "declaration",
    "undisputed",
)

_REMEMBERED: Final = 1_000
_REMEMBERED_BYTES: Final = 2 << 20
"""Of the decisions that are remembered, as they are encoded: a fold has room for them. The last one
is, whatever its size."""
_MOST: Final = 1_000
_NAMED: Final = 20


class _RefusedError(Exception):
    def __init__(self, kind: RefusalKind, reason: str) -> None:
        super().__init__(reason)
        self.refusal = DecisionRefusal(kind, reason)


_DesiredReplicas: TypeAlias = dict[str, DesiredReplica]


class Ledger:
    """Folds the log; read it at any time between two calls of `fold`.

    `topology` gives what no decision is about (Kafka, limits, HTTP); its replicas, case and
    policy count once they have been declared.
    """

    def __init__(self, topology: Topology):
        self.version = 0
        self.offset = 0
        """Every record before this one has been folded."""
        self.unreadable = 0
        """Records that are no decisions."""
        self.last_unreadable: str | None = None
        self.refused: Counter[RefusalKind] = Counter()
        """Decisions that changed nothing, by why."""
        self.repeated = 0
        """Records of decisions that were there before."""
        self.declared: Declare | None = None
        self.topology = topology
        """As decided: the replicas that are attached or quarantined, the case, the policy."""
        self.replicas: Mapping[str, DesiredReplica] = {}
        self.accepted_gaps: deque[AcceptedGap] = deque(maxlen=_REMEMBERED)
        self.cutover: Cutover | None = None
        """The latest one, whether it runs or has ended."""
        self.folded: int | None = None
        """Where the latest fold is that this ledger has begun with, or agrees with."""
        self.disagrees: str | None = None
        """Why the latest fold that holds is not what this ledger has come to."""
        self.output = OutputIncarnation()
        """The incarnation that the output is to be in."""
        self._policy_decided = False
        self._entries: OrderedDict[str, Entry] = OrderedDict()
        self._bytes = 0
        """Of the decisions in them."""

    @property
    def policy(self) -> OutputPolicy:
        return self.topology.policy

    @property
    def history(self) -> Sequence[Entry]:
        """The last decisions, oldest first, each with its verdict."""
        return list(self._entries.values())

    def entry(self, decision_id: str) -> Entry | None:
        """The decision with this id, unless it is not there, or was so long ago as to be
        forgotten."""
        return self._entries.get(decision_id)

    def attached(self) -> list[DesiredReplica]:
        """The replicas that are to be merged."""
        return [each for each in self.replicas.values() if each.state is DesiredState.ATTACHED]

    def declaring(self, topology: Topology) -> Declare | None:
        """What a worker with this topology has to declare; None when it is declared already."""
        declared = declaration(topology)
        return None if declared == self.declared else declared

    def fold(self, offset: int, value: bytes | None) -> Entry | None:
        """Takes the record at an offset; the verdict, or None if it decides nothing new.

        Raises:
            ValueError: the offset has been folded already.
        """
        if offset < self.offset:
            raise ValueError(f"offset {offset} is folded already, {self.offset} is next")
        lacks, self.offset = offset > self.offset, offset + 1
        try:
            if folds.is_fold(value):
                self._take_fold(folds.decode(value), offset, lacks=lacks)
                return None
            decision = decode(value)
        except ElementError as error:
            self.unreadable += 1
            self.last_unreadable = f"offset {offset}: {error}"
            return None
        if decision.id in self._entries:
            self.repeated += 1
            return None
        return self._judge(offset, decision)

    def fold_next(self, value: bytes | None) -> Entry | None:
        """Takes the record behind the last one, where records are kept without their offsets; a
        fold that holds further on is where it holds: what is between was deleted, or is carried by
        it."""
        offset = self.offset
        if folds.is_fold(value):
            with suppress(ElementError):
                offset = max(offset, folds.decode(value).offset)
        return self.fold(offset, value)

    # --- folds ----------------------------------------------------------------------------------

    def begin_with(self, fold: Fold) -> None:
        """Begins with a fold that is kept beside the log; the record at its offset is next.

        Raises:
            ElementError: there is no such topology.
        """
        self._restore(fold.ledger)
        self.offset = fold.offset

    def state(self) -> LedgerState:
        """What a fold carries of it."""
        return LedgerState(
            version=self.version,
            unreadable=self.unreadable,
            last_unreadable=self.last_unreadable,
            refused=dict(self.refused),
            repeated=self.repeated,
            declared=self.declared,
            case=str(self.topology.case),
            policy=self.policy.model_dump(),
            policy_decided=self._policy_decided,
            replicas=list(self.replicas.values()),
            accepted_gaps=list(self.accepted_gaps),
            cutover=self.cutover,
            output=self.output,
            entries=list(self._entries.values()),
        )

    def _take_fold(self, fold: Fold, offset: int, *, lacks: bool) -> None:
        if fold.offset != offset:
            return  # F1
        if lacks:
            self._restore(fold.ledger)
        elif not folds.agree(fold.ledger, self.state()):
            self.disagrees = (
                f"the fold at offset {offset}, by {fold.who}, has version {fold.ledger.version} "
                f"and is not what the decisions before it come to here, version {self.version}: "
                "restart the workers of the older release"
            )
            return
        self.folded, self.disagrees = offset, None

    def _restore(self, state: LedgerState) -> None:
        """Takes a fold's content over, or leaves all as it is.

        Raises:
            ElementError: there is no such topology.
        """
        if state.declared is not None:
            declared = {
                "output": state.declared.output, "case": state.case, "policy": state.policy,
            }  # fmt: skip
            try:
                self.topology = self._valid(declared, state.replicas)
            except _RefusedError as error:
                raise ElementError("fold", f"a fold that cannot be used: {error}") from None
        self.version, self.declared = state.version, state.declared
        self.unreadable, self.last_unreadable = state.unreadable, state.last_unreadable
        self.refused, self.repeated = Counter(state.refused), state.repeated
        self._policy_decided = state.policy_decided
        self.replicas = {each.replica.name: each for each in state.replicas}
        self.accepted_gaps = deque(state.accepted_gaps, maxlen=_REMEMBERED)
        self.cutover, self.output = state.cutover, state.output
        self._entries, self._bytes = OrderedDict(), 0
        for entry in state.entries:
            self._remember(entry)

    # --- verdicts -------------------------------------------------------------------------------

    def _judge(self, offset: int, decision: Decision) -> Entry:
        refusal = None
        try:
            self._check_version(decision.expects)
            self._apply(decision)
            self.version += 1
            self._review_cutover(decision)
        except _RefusedError as error:
            refusal = error.refusal
            self.refused[refusal.kind] += 1
        entry = Entry(offset, decision, self.version, refusal)
        self._remember(entry)
        return entry

    def _remember(self, entry: Entry) -> None:
        self._entries[entry.decision.id] = entry
        self._bytes += len(encode(entry.decision))
        while len(self._entries) > _REMEMBERED or (
            self._bytes > _REMEMBERED_BYTES and len(self._entries) > 1
        ):
            _, gone = self._entries.popitem(last=False)
            self._bytes -= len(encode(gone.decision))

    def _check_version(self, expects: int | None) -> None:
        if expects is None or expects == self.version:
            return
        if expects > self.version:
            between = "that version is not there yet"
        else:
            between = f"{self._came_after(expects)} came between"
        raise _RefusedError(
            "version",
            f"made against version {expects}, but the version is {self.version}: {between}",
        )

    def _came_after(self, version: int) -> str:
        for entry in self._entries.values():
            if entry.accepted and entry.version == version + 1:
                return f'"{words(entry.decision.action)}" by {entry.decision.who}'
        return "another decision"

    # --- the actions: each computes what is to be, and only then is anything changed -------------

    def _apply(self, decision: Decision) -> None:
        if self.declared is None and not isinstance(decision.action, Declare):
            raise _RefusedError("state", "no topology has been declared yet")
        match decision.action:
            case Declare() as action:
                self._declare(action, decision.who)
            case Attach(replica):
                self._settle(self._attaching(replica, decision.who))
            case Detach(replica):
                self._settle(self._moved(replica, ReplicaEvent.DETACH, decision.who))
            case Quarantine(replica, reason):
                moved = self._moved(replica, ReplicaEvent.QUARANTINE, decision.who)
                self._settle(replace(moved, reason=reason))
            case Release() as action:
                self._release(action, decision.who)
            case AcceptGap() as action:
                self._accept_gap(action, decision.who)
            case SetPolicy() as action:
                policy = {name: getattr(action, name) for name in ("insert", "adjust", "stable")}
                self.topology = self._valid({"policy": policy}, self.replicas.values())
                self._policy_decided = True
            case RestartOutput() as action:
                self._restart_output(action, decision.who)
            case BeginCutover() as action:
                self._begin_cutover(action, decision.who)
            case ReportCutover() as action:
                self._report_cutover(action)
            case AbortCutover(reason):
                why = f"{decision.who}: {reason}" if reason else f"by {decision.who}"
                self._move_cutover(self._running_cutover(), CutoverEvent.ABORT, why)
            case _ as never:
                assert_never(never)

    def _declare(self, action: Declare, who: str) -> None:
        if action == self.declared:
            raise _RefusedError("state", "this is what was declared last")
        if self.declared is not None and self.declared.merge != action.merge:
            topic = self.topology.output.topic
            why = f"{topic} is the output of the merge {self.declared.merge}; use another topic"
            raise _RefusedError("invalid", why)
        if self.declared is not None and _identity(self.declared) != _identity(action):
            why = (
                "key, nfc and drop_nulls make the output what it is: to change them, use a new "
                "output topic"
            )
            raise _RefusedError("invalid", why)
        version = self.version + 1
        declared_before = {} if self.declared is None else _by_name(self.declared)
        policy = self.policy.model_dump() if self._policy_decided else action.policy
        declared = {"output": action.output, "case": action.case, "policy": policy}
        desired, names = dict(self.replicas), set()
        for document in action.replicas:
            replica = _replica(document)
            names.add(replica.name)
            before = desired.get(replica.name)
            if before is None or not before.decided:
                was = declared_before.get(replica.name)
                desired[replica.name] = _declared(replica, was, before, version, who)
        for name, each in self.replicas.items():
            if name not in names and not each.decided and each.state is not DesiredState.DETACHED:
                gone = "the topology file names it no more"
                desired[name] = replace(
                    each, state=DesiredState.DETACHED, since=version, reason=gone, who=who
                )
        topology = self._valid(declared, desired.values())
        if topology.output.control_topic != self.topology.output.control_topic:
            raise _RefusedError("invalid", f"this log is not about {topology.output.topic}")
        # What is auto is settled now: a replica that leaves must not make the case a stronger one.
        self.topology = topology.model_copy(update={"case": topology.resolved_case.value})
        self.declared = action
        self._keep(desired)

    def _attaching(self, document: Mapping[str, Any], who: str) -> DesiredReplica:
        replica, version = _replica(document), self.version + 1
        known = self.replicas.get(replica.name)
        if known is not None:
            self._allowed(known, ReplicaEvent.ATTACH)
        if len(self.topology.replicas) >= _MOST:
            raise _RefusedError("invalid", f"there are {_MOST} replicas, and no room for more")
        return DesiredReplica(
            replica,
            DesiredState.ATTACHED,
            version,
            version,
            None,
            who,
            released=False,
            decided=True,
        )

    def _release(self, action: Release, who: str) -> None:
        moved = self._moved(action.replica, ReplicaEvent.RELEASE, who)
        replica = moved.replica
        if action.joining_at is not None:
            replica = _replica({**replica.model_dump(), "joining_at": action.joining_at})
        self._settle(replace(moved, replica=replica, epoch=self.version + 1, released=True))

    def _accept_gap(self, action: AcceptGap, who: str) -> None:
        known = self._known(action.replica)
        if known.state is not DesiredState.ATTACHED:
            raise _RefusedError("state", f"replica {action.replica} is {known.state}")
        gap = AcceptedGap(action.replica, action.until, self.version + 1, who)
        self.accepted_gaps.append(gap)

    def _restart_output(self, action: RestartOutput, who: str) -> None:
        """Every attached replica is attached again: the new incarnation is merged from what their
        topics have."""
        if action.incarnation <= self.output.number:
            why = f"the output is in incarnation {self.output.number} already"
            raise _RefusedError("state", why)
        attached = {each.replica.name for each in self.attached()}
        if action.replicas.keys() != attached:
            why = f"it is about other replicas than are attached: {', '.join(sorted(attached))}"
            raise _RefusedError("state", why)
        version, desired = self.version + 1, dict(self.replicas)
        for name, joining_at in action.replicas.items():
            known = desired[name]
            since = None if joining_at in (None, START) else joining_at
            replica = _replica({**known.replica.model_dump(), "joining_at": since})
            desired[name] = replace(known, replica=replica, since=version, epoch=version)
        self.topology = self._valid({}, desired.values())
        self._keep(desired)
        self.output = OutputIncarnation(
            action.incarnation, action.correct_from, version, who, action.reason
        )

    # --- cutovers -------------------------------------------------------------------------------

    def _begin_cutover(self, action: BeginCutover, who: str) -> None:
        before, version = self.cutover, self.version + 1
        if before is not None and move(before.state, CutoverEvent.BEGIN) is None:
            why = f"the cutover {before} is {before.state} since version {before.since}"
            raise _RefusedError("state", f"{why}: abort it first, or wait")
        if action.leaving == action.coming:
            raise _RefusedError("invalid", f"{action.leaving} cannot take its own place")
        leaving = self._merged(action.leaving)
        if action.attach is None:
            coming = self._merged(action.coming)
        elif action.attach.get("name") == action.coming:
            coming = self._attaching(action.attach, who)
        else:
            raise _RefusedError("invalid", "what is to be attached has another name")
        self._check_spared({**self.replicas, action.coming: coming}, action.leaving)
        if action.attach is not None:
            self._settle(coming)
        self.cutover = Cutover(
            leaving=action.leaving,
            coming=action.coming,
            watch=action.watch,
            max_behind=action.max_behind,
            max_divergences=action.max_divergences,
            tasks=self.topology.output.partitions,
            who=who,
            began=version,
            epochs=(leaving.epoch, coming.epoch),
            rules=self._rules(),
            state=CutoverState.JOINING,
            since=version,
        )

    def _merged(self, name: str) -> DesiredReplica:
        known = self._known(name)
        if known.state is not DesiredState.ATTACHED:
            raise _RefusedError("state", f"replica {name} is {known.state}")
        return known

    def _check_spared(self, desired: Mapping[str, DesiredReplica], leaving: str) -> None:
        """Refuses unless a valid topology is left without the one that leaves."""
        self._valid({}, [each for name, each in desired.items() if name != leaving])

    def _rules(self) -> tuple[str, ...]:
        policy = self.policy
        return (str(self.topology.resolved_case), policy.insert, policy.adjust, policy.stable)

    def _running_cutover(self) -> Cutover:
        if self.cutover is None or not self.cutover.runs:
            was = "" if self.cutover is None else f": {self.cutover} is {self.cutover.state}"
            raise _RefusedError("state", f"no cutover runs{was}")
        return self.cutover

    def _report_cutover(self, action: ReportCutover) -> None:
        cutover = self._running_cutover()
        if (action.cutover, action.since) != (cutover.began, cutover.since):
            why = f"the cutover of version {cutover.began} is {cutover.state} since {cutover.since}"
            raise _RefusedError("state", why)
        task = action.task
        if task >= cutover.tasks:
            raise _RefusedError("invalid", f"there is no task {task}")
        if action.readiness == "diverged":
            self._move_cutover(cutover, CutoverEvent.DIVERGE, f"task {task}: {action.why}")
            return
        ready = action.readiness == "ready"
        if ready == (task in (cutover.ready or {})):
            raise _RefusedError("state", f"task {task} is known to be {action.readiness}")
        cutover = cutover.reported(task, action.at, ready=ready)
        if not cutover.agreed:
            self.cutover = cutover
            return
        if move(cutover.state, CutoverEvent.AGREE) is CutoverState.DONE:
            gone = self._moved(cutover.leaving, ReplicaEvent.DETACH, cutover.who)
            self._settle(replace(gone, reason=f"cutover to {cutover.coming}"))
        self._move_cutover(cutover, CutoverEvent.AGREE)

    def _move_cutover(self, cutover: Cutover, event: CutoverEvent, why: str | None = None) -> None:
        self.cutover = cutover.moved(event, self.version + 1, why)

    def _review_cutover(self, decision: Decision) -> None:
        """What the decision that was just accepted means for a cutover that runs."""
        cutover = self.cutover
        if cutover is None or not cutover.runs:
            return
        cause = f'"{words(decision.action)}" by {decision.who}'
        if (why := self._withdrawn(cutover, cause)) is not None:
            self.cutover = cutover.moved(CutoverEvent.WITHDRAW, self.version, why)
        elif self._rules() != cutover.rules:
            changed = cutover.moved(CutoverEvent.CHANGE, self.version, f"after {cause}")
            self.cutover = replace(changed, rules=self._rules())

    def _withdrawn(self, cutover: Cutover, cause: str) -> str | None:
        """Why it cannot go on."""
        both = (cutover.leaving, cutover.coming)
        known = [self.replicas.get(name) for name in both]
        for each, epoch in zip(known, cutover.epochs, strict=True):
            if each is None or each.state is not DesiredState.ATTACHED or each.epoch != epoch:
                return f"after {cause}"
        try:
            self._check_spared(self.replicas, cutover.leaving)
        except _RefusedError as error:
            return f"after {cause}, without {cutover.leaving}: {error}"
        return None

    # --- what actions have in common ------------------------------------------------------------

    def _known(self, name: str) -> DesiredReplica:
        known = self.replicas.get(name)
        if known is None:
            there = ", ".join(sorted(self.replicas)[:_NAMED]) or "none"
            raise _RefusedError("unknown", f"there is no replica {name}; there are: {there}")
        return known

    def _allowed(self, known: DesiredReplica, event: ReplicaEvent) -> DesiredState:
        state = desired_after(known.state, event)
        if state is None:
            name = known.replica.name
            raise _RefusedError(
                "state", f"replica {name} is {known.state}: {event} is not possible"
            )
        return state

    def _moved(self, name: str, event: ReplicaEvent, who: str) -> DesiredReplica:
        known = self._known(name)
        state = self._allowed(known, event)
        return replace(
            known, state=state, since=self.version + 1, reason=None, who=who, decided=True
        )

    def _settle(self, changed: DesiredReplica) -> None:
        """Makes a change of one replica hold, if the topology that it leads to is valid."""
        desired = {**self.replicas, changed.replica.name: changed}
        topology = self._valid({}, desired.values())
        if changed.state is DesiredState.ATTACHED:
            self._check_case(topology, changed.replica)
        self.topology = topology
        self._keep(desired)

    def _check_case(self, topology: Topology, replica: Replica) -> None:
        """Under `case: auto`, refuses a replica that promises too little for the case it has."""
        if self.declared is None or self.declared.case != "auto":
            return
        declared = [_replica(each) for each in self.declared.replicas]
        properties = (each.properties.of_stream() for each in (*declared, *topology.replicas))
        if (needed := weakest(properties)) is not topology.resolved_case:
            raise _RefusedError(
                "invalid",
                f"with the properties of {replica.name} the case is {needed}, and auto was "
                f"{topology.resolved_case}: name the weaker case in the topology, and restart",
            )

    def _valid(self, declared: Mapping[str, Any], desired: Iterable[DesiredReplica]) -> Topology:
        """The topology of these replicas, with the fields that are `declared` replaced."""
        replicas = [each.replica for each in desired if each.state is not DesiredState.DETACHED]
        if not replicas:
            raise _RefusedError("invalid", "no replica would be left: attach another one first")
        fields = {name: getattr(self.topology, name) for name in Topology.model_fields}
        try:
            return Topology.model_validate({**fields, **declared, "replicas": tuple(replicas)})
        except ValidationError as error:
            raise _RefusedError("invalid", _message_of(error)) from None

    def _keep(self, desired: _DesiredReplicas) -> None:
        named = {each.get("name") for each in self.declared.replicas} if self.declared else set()
        idle = [
            name
            for name, each in desired.items()
            if each.state is DesiredState.DETACHED and name not in named
        ]
        idle.sort(key=lambda name: desired[name].since)
        for name in idle[: max(0, len(idle) - _MOST)]:
            del desired[name]
        self.replicas = desired

    def check(self) -> None:
        """Asserts the invariants."""
        accepted = self._accepted()
        versions = [entry.version for entry in accepted]
        assert versions == list(range(self.version - len(accepted) + 1, self.version + 1)), "G2"
        for name, each in self.replicas.items():
            assert name == each.replica.name
            assert each.epoch <= each.since <= self.version, "G3"
        desired = {
            n for n, each in self.replicas.items() if each.state is not DesiredState.DETACHED
        }
        assert self.version == 0 or desired == {each.name for each in self.topology.replicas}
        assert len(self._entries) <= _REMEMBERED, "G4"
        assert self._bytes <= _REMEMBERED_BYTES or len(self._entries) == 1, "G4"
        if (cutover := self.cutover) is not None and cutover.runs:
            assert self._withdrawn(cutover, "nothing") is None, "G5"
            assert not cutover.agreed
            assert cutover.began <= cutover.since <= self.version

    def _accepted(self) -> list[Entry]:
        return [entry for entry in self._entries.values() if entry.accepted]


def declaration(topology: Topology) -> Declare:
    """The fields of a topology that decisions are about; those with their default are left out.

    Only that, so that nothing secret can come into the log.
    """

    def dump(model: Any, exclude: set[str] | None = None) -> dict[str, Any]:
        document: dict[str, Any] = model.model_dump(
            mode="json", exclude_defaults=True, exclude=exclude
        )
        return document

    return Declare(
        merge=topology.name,
        output=dump(topology.output, {"keep", "readers", "longest_outage", "on_lost_state"}),
        key=list(topology.key),
        nfc=topology.nfc,
        drop_nulls=topology.drop_nulls,
        case=topology.case,
        policy=dump(topology.policy),
        replicas=[dump(each) for each in topology.replicas],
    )


def _identity(declared: Declare) -> tuple[list[str], bool, bool]:
    """Which events of the output are one."""
    return declared.key, declared.nfc, declared.drop_nulls


def undisputed(topology: Topology) -> Ledger:
    """The ledger of a merge about which nothing but the topology was ever decided."""
    ledger = Ledger(topology)
    declared = ledger.declaring(topology)
    assert declared is not None
    ledger.fold(0, encode(Decision("declared", declared, "the topology file", made=0)))
    return ledger


def _by_name(declared: Declare) -> dict[str, Replica]:
    replicas = (_replica(document) for document in declared.replicas)
    return {each.name: each for each in replicas}


def _declared(
    replica: Replica,
    was: Replica | None,
    before: DesiredReplica | None,
    version: int,
    who: str,
) -> DesiredReplica:
    """A replica as the file has it; attached again if another one is to be read than the file had
    before (`was`). From when on it is correct may have been decided since (`RestartOutput`)."""
    if was is not None and before is not None and before.state is DesiredState.ATTACHED:
        properties = {"properties": replica.properties}
        if was.model_copy(update=properties) == replica:
            return replace(before, replica=before.replica.model_copy(update=properties))
    return DesiredReplica(
        replica, DesiredState.ATTACHED, version, version, None, who, released=False, decided=False
    )


def _replica(document: Mapping[str, Any]) -> Replica:
    try:
        return Replica.model_validate(document)
    except ValidationError as error:
        raise _RefusedError("invalid", _message_of(error)) from None


def _message_of(error: ValidationError) -> str:
    """All faults in one line, each with its place."""
    faults = []
    for fault in error.errors(include_url=False, include_input=False):
        place = ".".join(map(str, fault["loc"]))
        text = fault_message(fault)
        faults.append(f"{place}: {text}" if place else text)
    return "; ".join(faults)[:2_000]
