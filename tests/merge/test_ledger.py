"""The ledger: what a log of decisions comes to, verdict by verdict."""

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmerge_service.config.topology import Topology
from lmerge_service.core import Case
from lmerge_service.errors import ElementError
from lmerge_service.merge.decisions.ledger import Entry, Ledger, declaration
from lmerge_service.merge.decisions.records import (
    LONGEST_REASON,
    AcceptGap,
    Action,
    Attach,
    Decision,
    Detach,
    Quarantine,
    Release,
    RestartOutput,
    SetPolicy,
    decide,
    decode,
    encode,
    words,
)
from lmerge_service.merge.replica_states import DesiredState

TOPIC_NAME = (
    "a topic name has 1 to 249 of the characters a-z A-Z 0-9 . _ -, and is neither . nor .."
)


def topology(*replicas: str, **fields: Any) -> Topology:
    """A topology of replicas, each in the topic of its name in capitals."""
    return Topology.model_validate(
        {
            "name": "t",
            "kafka": {"bootstrap": "127.0.0.1:9092"},
            "output": {"topic": "out"},
            "replicas": [{"name": name, "topic": name.upper()} for name in replicas],
            **fields,
        }
    )


class Log:
    """A log in memory with a ledger that has folded it."""

    def __init__(self, base: Topology):
        self.base = base
        self.records: list[bytes | None] = []
        self.ledger = Ledger(base)
        self.declare(base)

    def declare(self, file: Topology) -> Entry | None:
        declaring = self.ledger.declaring(file)
        return None if declaring is None else self.do(declaring, who="the topology file")

    def append(self, decision: Decision) -> Entry | None:
        return self.raw(encode(decision))

    def raw(self, value: bytes | None) -> Entry | None:
        self.records.append(value)
        entry = self.ledger.fold(len(self.records) - 1, value)
        self.ledger.check()
        return entry

    def do(self, action: Action, expects: int | None = None, who: str = "anna") -> Entry:
        entry = self.append(decide(action, who, expects=expects))
        assert entry is not None
        return entry

    def again(self, base: Topology | None = None) -> Ledger:
        """Another reader, of the whole log."""
        ledger = Ledger(base or self.base)
        for offset, value in enumerate(self.records):
            ledger.fold(offset, value)
        return ledger


def attach(name: str, topic: str | None = None, **fields: Any) -> Attach:
    return Attach({"name": name, "topic": topic or name.upper(), **fields})


def verdict(entry: Entry) -> str | None:
    return None if entry.refusal is None else f"{entry.refusal.kind}: {entry.refusal.reason}"


def desired_states(ledger: Ledger) -> dict[str, str]:
    return {name: each.state.value for name, each in ledger.replicas.items()}


# The topology file


def test_the_files_replicas_are_attached() -> None:
    log = Log(topology("a", "b"))
    assert log.ledger.version == 1
    assert desired_states(log.ledger) == {"a": "attached", "b": "attached"}
    assert [each.replica.topic for each in log.ledger.attached()] == ["A", "B"]
    assert not log.ledger.replicas["a"].decided


def test_a_file_without_a_change_declares_nothing() -> None:
    log = Log(topology("a", "b"))
    assert log.ledger.declaring(topology("a", "b", http={"port": 0})) is None


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"name": "other"}, "out is the output of the merge t"),
        ({"key": ["id"]}, "key, nfc and drop_nulls make the output what it is"),
        ({"nfc": True}, "key, nfc and drop_nulls make the output what it is"),
        ({"drop_nulls": True}, "key, nfc and drop_nulls make the output what it is"),
    ],
)
def test_what_makes_an_output_what_it_is_cannot_change(change: dict[str, Any], why: str) -> None:
    log = Log(topology("a", "b"))
    entry = log.do(declaration(topology("a", "b", **change)))
    assert why in (verdict(entry) or "")
    assert log.ledger.version == 1


def test_two_workers_that_start_at_once_declare_once() -> None:
    base = topology("a", "b")
    log = Log(base)
    second = log.do(declaration(base))
    assert verdict(second) == "state: this is what was declared last"
    assert log.ledger.version == 1


def test_before_a_topology_is_declared_nothing_can_be_decided() -> None:
    ledger = Ledger(topology("a", "b"))
    entry = ledger.fold(0, encode(decide(Detach("a"), "anna")))
    assert entry is not None
    assert verdict(entry) == "state: no topology has been declared yet"


def test_a_file_that_went_there_and_back_is_declared_each_time() -> None:
    log = Log(topology("a", "b"))
    log.declare(topology("a"))
    log.declare(topology("a", "b"))
    assert log.ledger.version == 3
    assert desired_states(log.ledger) == {"a": "attached", "b": "attached"}
    assert log.ledger.replicas["a"].epoch == 1
    assert log.ledger.replicas["b"].epoch == 3


def test_decisions_win_over_a_file_that_changes() -> None:
    log = Log(topology("a", "b", "c"))
    log.do(Detach("b"))
    log.do(attach("d", "D"))
    log.do(SetPolicy("first", "eager", "quorum(2)"))
    log.declare(topology("b", "c", "e", policy={"adjust": "leader"}))
    assert desired_states(log.ledger) == {
        "a": "detached", "b": "detached", "c": "attached", "d": "attached", "e": "attached",
    }  # fmt: skip
    assert log.ledger.replicas["a"].reason == "the topology file names it no more"
    assert log.ledger.policy.stable == "quorum(2)"
    assert log.ledger.policy.adjust == "eager"


def test_a_replica_that_the_file_moves_is_attached_anew_and_one_that_it_describes_is_not() -> None:
    log = Log(topology("a", "b"))
    moved = {"name": "a", "topic": "A2"}
    described = {"name": "b", "topic": "B", "properties": {"ordered": True}}
    log.declare(topology(replicas=[moved, described]))
    assert log.ledger.replicas["a"].epoch == 2
    assert log.ledger.replicas["b"].epoch == 1
    assert log.ledger.replicas["b"].replica.properties.ordered


def test_a_file_that_clashes_with_a_decision_is_refused_as_a_whole() -> None:
    log = Log(topology("a", "b"))
    log.do(attach("c", "C"))
    entry = log.declare(topology(replicas=[{"name": "x", "topic": "C"}]))
    assert entry is not None
    assert verdict(entry) == "invalid: replicas share the topic C"
    assert desired_states(log.ledger) == {"a": "attached", "b": "attached", "c": "attached"}


def test_a_topology_of_another_output_is_refused() -> None:
    log = Log(topology("a", "b"))
    entry = log.declare(topology("a", "c", output={"topic": "other"}))
    assert entry is not None
    assert verdict(entry) == "invalid: this log is not about other"


def test_nothing_secret_is_declared() -> None:
    base = topology("a", http={"port": 1}, kafka={"bootstrap": "127.0.0.1:1", "tls": {}})
    declared = msgspec.to_builtins(declaration(base))
    assert declared == {
        "do": "declare",
        "merge": "t",
        "key": [],
        "nfc": False,
        "drop_nulls": False,
        "output": {"topic": "out"},
        "case": "R3",
        "policy": {},
        "replicas": [{"topic": "A", "name": "a"}],
    }


# Attaching and letting go


def test_attach_detach_and_attach_again_are_two_attachments() -> None:
    log = Log(topology("a", "b"))
    log.do(attach("c"))
    assert log.ledger.replicas["c"].epoch == 2
    log.do(Detach("c"))
    assert (log.ledger.replicas["c"].state, log.ledger.replicas["c"].since) == (
        DesiredState.DETACHED,
        3,
    )
    log.do(attach("c", "C2", joining_at=50))
    again = log.ledger.replicas["c"]
    assert (again.epoch, again.replica.topic, again.replica.joining_at) == (4, "C2", 50)
    assert [each.name for each in log.ledger.topology.replicas] == ["a", "b", "c"]


def test_a_quarantine_keeps_the_reason_until_it_is_released() -> None:
    log = Log(topology("a", "b"))
    log.do(Quarantine("b", "a day ahead"), who="guard: skew")
    held = log.ledger.replicas["b"]
    assert (held.state, held.reason, held.who) == ("quarantined", "a day ahead", "guard: skew")
    assert [each.replica.name for each in log.ledger.attached()] == ["a"]
    log.do(Release("b", joining_at=70))
    freed = log.ledger.replicas["b"]
    assert (freed.state, freed.reason, freed.epoch) == ("attached", None, 3)
    assert freed.replica.joining_at == 70


def test_a_release_without_a_time_keeps_the_replicas_own() -> None:
    log = Log(topology("a", replicas=[{"name": "a", "topic": "A", "joining_at": 7}]))
    log.do(Quarantine("a", "?"))
    log.do(Release("a"))
    assert log.ledger.replicas["a"].replica.joining_at == 7


@pytest.mark.parametrize(
    ("before", "action", "refused"),
    [
        ([], Detach("x"), "unknown: there is no replica x; there are: a, b"),
        ([], Release("a"), "state: replica a is attached: release is not possible"),
        ([], attach("a", "Z"), "state: replica a is attached: attach is not possible"),
        ([Quarantine("a", "")], Quarantine("a", ""),
         "state: replica a is quarantined: quarantine is not possible"),
        ([Quarantine("a", "")], attach("a"),
         "state: replica a is quarantined: attach is not possible"),
        ([Quarantine("a", "")], AcceptGap("a", 9), "state: replica a is quarantined"),
        ([Detach("a")], Quarantine("a", ""),
         "state: replica a is detached: quarantine is not possible"),
        ([Detach("a")], Detach("b"),
         "invalid: no replica would be left: attach another one first"),
        ([], attach("c", "B"), "invalid: replicas share the topic B"),
        ([Quarantine("b", "")], attach("c", "B"), "invalid: replicas share the topic B"),
        ([], attach("c", "out"), "invalid: topic out is both written and read as a replica"),
        ([], attach("c", "out.control"),
         "invalid: topic out.control is both written and read as a replica"),
        ([], attach("c", "not a topic"),
         f"invalid: topic: {TOPIC_NAME}"),
        ([], attach("c", colour="red"), "invalid: colour: Extra inputs are not permitted"),
        ([], SetPolicy("first", "never", "max"),
         "invalid: policy: adjust must be one of lazy, eager, leader, got 'never'"),
        ([], SetPolicy("first", "lazy", "quorum(3)"),
         "invalid: stable=quorum(3) of 2 inputs is never reached"),
        ([SetPolicy("first", "lazy", "quorum(2)")], Detach("a"),
         "invalid: stable=quorum(2) of 1 inputs is never reached"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_with_the_reason(
    before: Sequence[Action], action: Action, refused: str
) -> None:
    log = Log(topology("a", "b"))
    for each in before:
        assert log.do(each).accepted
    was = log.again()
    entry = log.do(action)
    assert verdict(entry) == refused
    assert (log.ledger.version, log.ledger.replicas) == (was.version, was.replicas)
    assert log.ledger.topology == was.topology


def test_a_normalised_replica_cannot_be_attached_or_released_late() -> None:
    log = Log(topology("a", "b"))
    late = verdict(log.do(attach("c", normalise=True, joining_at=5)))
    assert late is not None
    assert late.startswith("invalid: normalise needs the whole history")
    log.do(attach("c", normalise=True))
    log.do(Quarantine("c", ""))
    assert verdict(log.do(Release("c", joining_at=5))) == late
    assert log.do(Release("c")).accepted


def test_a_normalised_replica_needs_a_case_with_revisions() -> None:
    log = Log(topology("a", case="R1"))
    refused = verdict(log.do(attach("b", normalise=True)))
    assert refused is not None
    assert "needs case R3 or R4, not R1" in refused


def test_a_quarantine_holds_even_where_it_leaves_too_few() -> None:
    log = Log(topology("a", "b", policy={"stable": "quorum(2)"}))
    assert log.do(Quarantine("a", "lies")).accepted
    assert log.do(Quarantine("b", "lies")).accepted


def test_auto_is_settled_when_it_is_declared() -> None:
    strong = {"ordered": True, "strictly_ordered": True, "revises": False}
    weak = {"ordered": True, "revises": False, "key": True}
    both = [
        {"name": "a", "topic": "A", "properties": strong},
        {"name": "b", "topic": "B", "properties": weak},
    ]
    log = Log(topology(case="auto", replicas=both))
    case = log.ledger.topology.resolved_case
    assert case is Case.R2
    log.do(Detach("b"))
    assert log.ledger.topology.resolved_case is case
    assert log.do(attach("c", properties=weak)).accepted
    refused = verdict(log.do(attach("d")))
    assert refused is not None
    assert "the case is R4, and auto was R2" in refused


def test_gaps_are_accepted_as_they_were_seen() -> None:
    log = Log(topology("a", "b"))
    log.do(AcceptGap("b", 90))
    (gap,) = log.ledger.accepted_gaps
    assert (gap.replica, gap.until, gap.version, gap.who) == ("b", 90, 2, "anna")
    assert verdict(log.do(AcceptGap("x", 90))) == "unknown: there is no replica x; there are: a, b"


# Versions and ids


def test_of_two_decisions_against_one_version_the_first_holds() -> None:
    log = Log(topology("a", "b", "c"))
    assert log.do(Detach("b"), expects=1).version == 2
    late = log.do(Detach("c"), expects=1, who="ben")
    assert late.version == 2
    assert verdict(late) == (
        "version: made against version 1, but the version is 2: "
        '"detach b" by anna came between'
    )  # fmt: skip
    early = log.do(Detach("c"), expects=5)
    assert verdict(early) == (
        "version: made against version 5, but the version is 2: that version is not there yet"
    )
    assert log.do(Detach("c"), expects=2).version == 3


def test_refused_decisions_make_no_version() -> None:
    log = Log(topology("a", "b"))
    log.do(Detach("x"))
    assert log.do(Detach("b"), expects=1).accepted


def test_a_repeated_id_is_the_same_decision() -> None:
    log = Log(topology("a", "b", "c"))
    made = decide(Detach("b"), "anna")
    assert log.append(made) is not None
    assert log.append(made) is None
    log.do(attach("b"))
    assert log.append(made) is None
    assert (log.ledger.version, log.ledger.repeated) == (3, 2)
    entry = log.ledger.entry(made.id)
    assert entry is not None
    assert (entry.accepted, entry.version) == (True, 2)


def test_the_history_is_bounded_and_in_order() -> None:
    log = Log(topology("a"))
    for number in range(600):
        log.do(attach(f"r{number}"))
        log.do(Detach(f"r{number}"))
    assert len(log.ledger.history) == 1_000
    assert [each.version for each in log.ledger.history] == list(range(202, 1_202))
    for number in range(600, 1_100):
        log.do(attach(f"r{number}"))
        log.do(Detach(f"r{number}"))
    assert len(log.ledger.replicas) == 1_001
    assert "r99" not in log.ledger.replicas
    assert "r100" in log.ledger.replicas


# Whatever a record holds


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"null",
        b"[]",
        b"{}",
        b"\xff",
        b'{"id":"\xff"}',
        b'{"id":"\\ud800","action":{"do":"detach","replica":"a"},"who":"x","made":0}',
        b"[" * 100_000,
        b'{"id":"1","action":{"do":"explode"},"who":"x","made":0}',
        b'{"id":"1","action":{"do":"detach","replica":"a"},"who":"x","made":0,"expects":-1}',
        b'{"id":"1","action":{"do":"detach","replica":"a"},"who":"x","made":0,"more":1}',
        b'{"id":"1","action":{"do":"detach","replica":"a"},"who":"","made":0}',
        b'{"id":"1","action":{"do":"release","replica":"a","joining_at":1e400},"who":"x","made":0}',
        b" " * (1 << 20) + b"{}",
    ],
)
def test_what_is_no_decision_is_counted_and_skipped(value: bytes | None) -> None:
    log = Log(topology("a", "b"))
    assert log.raw(value) is None
    assert (log.ledger.unreadable, log.ledger.version) == (1, 1)
    assert log.ledger.last_unreadable is not None
    assert log.ledger.last_unreadable.startswith("offset 1: no decision: ")
    assert log.do(Detach("a"), expects=1).accepted


def test_offsets_may_be_missing_but_not_come_again() -> None:
    ledger = Ledger(topology("a"))
    ledger.fold(5, b"no decision")
    assert ledger.offset == 6
    with pytest.raises(ValueError, match="offset 5 is folded already, 6 is next"):
        ledger.fold(5, b"no decision")


_scalars = st.none() | st.booleans() | st.integers() | st.text(max_size=5)
_documents = st.recursive(
    _scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=8), inner)
)
_objects = st.dictionaries(
    st.sampled_from(["name", "topic", "joining_at", "normalise", "properties", "x"]), _documents
)
_name = st.sampled_from(["a", "b", "c", "x"])
_time = st.integers(-(2**63), 2**63 - 1)
_policy = st.sampled_from(["first", "lazy", "eager", "max", "quorum(2)", "quorum(9)", "lag(5)"])
_actions: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.fixed_dictionaries({"do": st.just("attach"), "replica": _objects}),
    st.builds(
        lambda name, topic, at: {
            "do": "attach", "replica": {"name": name, "topic": topic, "joining_at": at},
        },
        _name, st.sampled_from(["A", "B", "C", "out"]), st.none() | _time,
    ),
    st.fixed_dictionaries({"do": st.just("detach"), "replica": _name}),
    st.fixed_dictionaries({"do": st.just("quarantine"), "replica": _name, "reason": st.text()}),
    st.fixed_dictionaries(
        {"do": st.just("release"), "replica": _name, "joining_at": st.none() | _time}
    ),
    st.fixed_dictionaries({"do": st.just("accept_gap"), "replica": _name, "until": _time}),
    st.fixed_dictionaries(
        {"do": st.just("policy"), "insert": _policy, "adjust": _policy, "stable": _policy}
    ),
    st.fixed_dictionaries(
        {
            "do": st.just("declare"), "output": _objects,
            "case": st.sampled_from(["R1", "R3", "?"]), "policy": _objects,
            "replicas": st.lists(_objects, max_size=3),
        }
    ),
)  # fmt: skip
_decisions = st.fixed_dictionaries(
    {
        "id": st.integers(0, 30).map(str),
        "action": _actions,
        "who": st.just("x"),
        "made": st.just(0),
        "expects": st.none() | st.integers(0, 12),
    }
)
decision_records = st.one_of(
    st.binary(max_size=20),
    st.none(),
    _documents.map(lambda document: json.dumps(document).encode()),
    _decisions.map(lambda document: json.dumps(document).encode()),
    _decisions.map(lambda document: json.dumps(document).encode()),
)


@given(st.lists(decision_records, max_size=30))
def test_folding_never_raises_and_every_reader_comes_to_the_same(
    records: list[bytes | None],
) -> None:
    log = Log(topology("a", "b"))
    for record in records:
        log.raw(record)
    other = log.again(topology("z", http={"port": 1}, case="R4"))
    ours = log.ledger
    assert ours.version == other.version
    assert ours.replicas == other.replicas
    assert ours.history == other.history
    assert ours.accepted_gaps == other.accepted_gaps
    assert ours.policy == other.policy
    assert ours.topology.case == other.topology.case
    read = ours.unreadable + ours.repeated + len(ours.history)
    assert read == len(records) + 1


@given(_decisions)
def test_a_decision_is_read_as_it_was_written(document: dict[str, Any]) -> None:
    try:
        decision = decode(json.dumps(document).encode())
    except ElementError:
        return
    assert decode(encode(decision)) == decision
    assert words(decision.action)


def test_what_nobody_could_read_is_not_written() -> None:
    too_long = decide(Quarantine("a", "x" * (LONGEST_REASON + 1)), "anna")
    with pytest.raises(ValueError, match="no decision: "):
        encode(too_long)


def test_long_decisions_are_forgotten_earlier_so_that_a_fold_has_room_for_them() -> None:
    """A thousand of the longest that there may be are many times what a fold has."""
    log = Log(topology("a", "b"))
    replicas: dict[str, int | None] = {f"r{number:03d}{'x' * 150}": None for number in range(900)}
    for incarnation in range(1, 41):
        log.do(RestartOutput(incarnation, 0, replicas))
    sizes = [len(encode(each.decision)) for each in log.ledger.history]
    assert 1 < len(sizes) < 40
    assert sum(sizes) <= 2 << 20 < sum(sizes) + sizes[-1]
    assert log.again().history == log.ledger.history
