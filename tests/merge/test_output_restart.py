"""From when on an output that starts over is correct, and what it is merged from."""

import random
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, cast

import pytest

from lmerge_service.config.topology import Topology
from lmerge_service.core import Case, lmerge
from lmerge_service.elements import INFINITY, START, Element, Insert, Stable
from lmerge_service.errors import ConfigurationError, StateError
from lmerge_service.formats.headers import incarnation_headers
from lmerge_service.formats.wire import encode
from lmerge_service.kafka.cluster import Cluster
from lmerge_service.kafka.source import TopicPartition
from lmerge_service.merge.commit_record import (
    COMMIT_KEY,
    CommitRecord,
    OutputBeginning,
    PartitionCheckpoint,
    ReplicaCheckpoint,
)
from lmerge_service.merge.decisions.ledger import declaration
from lmerge_service.merge.decisions.records import (
    Attach,
    Detach,
    Quarantine,
    RestartOutput,
    SetPolicy,
    decide,
)
from lmerge_service.merge.decisions.records import encode as encode_decision
from lmerge_service.merge.inspection import decided
from lmerge_service.merge.operator_input import OperatorInput
from lmerge_service.merge.output_restart import RestartPlan, decide_in_log, plan_restart
from lmerge_service.tdb import TDB
from lmerge_service.workloads.presentation import Variation, present
from tests.merge.test_ledger import Log, attach, desired_states, verdict
from tests.merge.test_ledger import topology as ledger_topology
from tests.service.cluster import logical, meaning
from tests.simulation.clients import MemoryCluster
from tests.simulation.loop import run
from tests.simulation.memory import Broker
from tests.simulation.network import Network


class Lost:
    """A merge whose topics are as they are set up here; nothing runs."""

    def __init__(self, *replicas: Mapping[str, Any], partitions: int = 1, **more: Any) -> None:
        self.broker = Broker(lambda: 0.0)
        self.topology = Topology.model_validate(
            {
                "name": "t",
                "kafka": {"bootstrap": "127.0.0.1:1"},
                "output": {"topic": "out", "partitions": partitions},
                "replicas": [{"topic": f"in.{each['name']}", **each} for each in replicas],
                **more,
            }
        )
        for topic in ("out", "out.state"):
            self.broker.create(topic, partitions)
        self.broker.create("out.control")
        self.do(declaration(self.topology))

    def do(self, action: Any) -> None:
        record = (None, encode_decision(decide(action, "anna")), ())
        self.broker.produce(TopicPartition("out.control", 0), [record])

    def publish(self, topic: str, *records: bytes, begins: int = 0, partition: int = 0) -> None:
        """Records of a partition, of which those before `begins` are deleted."""
        tp = TopicPartition(topic, partition)
        if self.broker.describe(topic) is None:
            self.broker.create(topic, partition + 1)
        self.broker.produce(tp, [(None, value, ()) for value in records])
        if begins:
            self.broker.truncate(tp, begins)

    def commit(self, stable: int, partition: int = 0, **more: Any) -> None:
        commit = CommitRecord(merge="t", transaction=3, output_records=2, stable=stable, **more)
        tp = TopicPartition("out.state", partition)
        self.broker.produce(tp, [(COMMIT_KEY, commit.encoded(), ())])

    def plan(self, **stated: int) -> RestartPlan:
        async def made() -> RestartPlan:
            cluster = cast(Cluster, MemoryCluster(Network(self.broker, Random(1))))
            ledger = await decided(self.topology, cluster)
            return await plan_restart(self.topology, cluster, ledger, stated=stated)

        return run(made())

    def merged(self, replica: str, begins: int) -> dict[str, ReplicaCheckpoint]:
        """As a commit record has a replica that was merged from an offset on."""
        found = self.broker.describe(f"in.{replica}")
        assert found is not None
        places = {0: PartitionCheckpoint(begins, begins + 1)}
        return {replica: ReplicaCheckpoint(f"in.{replica}", places, topic_id=found[0])}


def reaches(plan: RestartPlan) -> list[int | None]:
    return [each.correct_from for each in plan.replicas]


# --- from when on --------------------------------------------------------------------------------


def test_a_whole_topic_is_correct_from_where_the_output_was_since_feedback_ends_there() -> None:
    lost = Lost({"name": "a"}, {"name": "b", "joining_at": 70}, {"name": "c", "normalise": True})
    for name in "abc":
        lost.publish(f"in.{name}", b"x")
    lost.commit(40)
    plan = lost.plan()
    assert reaches(plan) == [40, 70, START]
    assert (plan.incarnation, plan.correct_from, plan.is_decided_for([0])) == (1, START, False)
    assert [plan.gap(each) for each in plan.partitions] == [None]


def test_of_several_partitions_the_least_stable_counts_and_each_may_have_a_gap() -> None:
    lost = Lost({"name": "a"}, {"name": "b", "joining_at": 70}, partitions=2)
    lost.publish("in.a", b"x")
    lost.publish("in.b", b"x")
    lost.commit(40)
    lost.commit(60, partition=1)
    assert reaches(lost.plan()) == [40, 70]
    plan = lost.plan(a=65)
    assert plan.correct_from == 65
    assert [plan.gap(each) for each in plan.partitions] == [(40, 65), (60, 65)]


def test_a_topic_that_has_lost_what_was_merged_shows_nothing() -> None:
    """Also if it joined late, and has lost more by now; what it had lost before matters not."""
    lost = Lost({"name": "a", "joining_at": 30}, {"name": "b", "joining_at": 50})
    lost.publish("in.a", b"x", b"y", b"z", begins=2)
    lost.publish("in.b", b"x", b"y", b"z", begins=2)
    lost.commit(40, replicas={**lost.merged("a", 1), **lost.merged("b", 2)})
    plan = lost.plan()
    assert reaches(plan) == [None, 50]
    assert "in.a-0 begins at offset 2" in plan.replicas[0].why
    assert plan.correct_from == 50
    assert plan.gap(plan.partitions[0]) == (40, 50)
    assert reaches(lost.plan(a=45)) == [45, 50]


def test_a_partition_that_was_not_merged_yet_and_has_lost_records_shows_nothing() -> None:
    lost = Lost({"name": "a", "joining_at": 50})
    lost.broker.create("in.a", 2)
    lost.publish("in.a", b"x")
    lost.publish("in.a", b"x", b"y", begins=1, partition=1)
    lost.commit(40, replicas=lost.merged("a", 0))
    assert reaches(lost.plan()) == [None]


def test_one_that_was_never_merged_is_believed_what_it_declares() -> None:
    lost = Lost({"name": "a", "joining_at": 50}, {"name": "b"})
    lost.publish("in.a", b"x", b"y", begins=1)
    lost.publish("in.b", b"x", b"y", begins=1)
    lost.commit(40)
    assert reaches(lost.plan()) == [50, None]


def test_a_topic_that_is_another_one_by_now_is_whole() -> None:
    lost = Lost({"name": "a"})
    lost.publish("in.a", b"x")
    lost.commit(40, replicas=lost.merged("a", 0))
    lost.broker.delete("in.a")
    lost.publish("in.a", b"y")
    assert reaches(lost.plan()) == [40]


def test_a_topic_that_is_not_there_shows_nothing_and_nobody_is_no_plan() -> None:
    lost = Lost({"name": "a"})
    lost.commit(40)
    plan = lost.plan()
    assert (reaches(plan), plan.correct_from) == ([None], None)
    with pytest.raises(StateError, match=r"a: there is no topic in.a.*--correct-from"):
        plan.action("")
    with pytest.raises(ConfigurationError, match="no replica b is attached; there are: a"):
        lost.plan(b=5)


def test_of_an_output_that_has_ended_only_a_person_knows_what_was_left_out() -> None:
    lost = Lost({"name": "a"}, {"name": "b", "normalise": True})
    lost.publish("in.a", b"x")
    lost.publish("in.b", b"x")
    lost.commit(INFINITY)
    assert reaches(lost.plan()) == [None, START]
    assert reaches(lost.plan(a=START)) == [START, START]
    nobody = Lost({"name": "a"})
    nobody.do(Quarantine("a", "to see"))
    nobody.commit(INFINITY)
    assert nobody.plan().correct_from is None
    nobody.commit(40)
    assert nobody.plan().correct_from == 40


def test_a_quorum_needs_as_many_as_decide() -> None:
    lost = Lost({"name": "a"}, {"name": "b"}, {"name": "c"}, policy={"stable": "quorum(2)"})
    for name in "abc":
        lost.publish(f"in.{name}", b"x")
    lost.commit(40)
    assert lost.plan(a=60, b=50).correct_from == 50
    assert lost.plan(a=60, b=50, c=70).correct_from == 60


def test_without_a_commit_record_what_is_left_of_the_output_shows_how_far_it_was() -> None:
    lost = Lost({"name": "a"})
    lost.publish("in.a", b"x")
    left: list[Element] = [Insert(b'"p"', 5, 9), Stable(7), Stable(12), Insert(b'"q"', 20, 30)]
    lost.publish("out", *(encode(each) for each in left), b"no element", begins=1)
    assert lost.plan().partitions[0].stable == 12
    second = (None, encode(Stable(3)), incarnation_headers(4, 2))
    lost.broker.produce(TopicPartition("out", 0), [second])
    plan = lost.plan()
    assert (plan.partitions[0].stable, plan.incarnation) == (3, 5)
    lost.broker.truncate(TopicPartition("out", 0), 6)
    plan = lost.plan()
    assert (plan.partitions[0].stable, reaches(plan), plan.correct_from) == (None, [None], None)


def test_the_next_incarnation_is_above_all_that_was_decided_or_begun() -> None:
    lost = Lost({"name": "a"})
    lost.publish("in.a", b"x")
    lost.commit(40, output=OutputBeginning(2, 30, 5, 5))
    assert lost.plan().incarnation == 3
    lost.do(lost.plan().action("why"))
    plan = lost.plan()
    assert (plan.incarnation, plan.is_decided_for([0]), plan.is_decided_for([])) == (4, True, False)
    lost.commit(9, output=OutputBeginning(3, 30, 5, 5))
    assert not lost.plan().is_decided_for([0]), "it has begun that, and lost its state again"


def test_a_decision_without_a_worker_is_in_the_log_with_its_verdict() -> None:
    lost = Lost({"name": "a"})
    lost.publish("in.a", b"x")
    lost.commit(40)
    plan = lost.plan()

    async def twice() -> Sequence[str | None]:
        cluster = cast(Cluster, MemoryCluster(Network(lost.broker, Random(1))))
        made = [decide(plan.action("why"), "anna", expects=plan.version) for _ in range(2)]
        entries = [await decide_in_log(lost.topology, cluster, each) for each in made]
        return [verdict(each) for each in entries]

    accepted, refused = run(twice())
    assert accepted is None
    assert refused is not None
    assert "version" in refused


# --- the decision --------------------------------------------------------------------------------


def test_a_restart_attaches_everybody_again_from_when_they_are_correct() -> None:
    log = Log(ledger_topology("a", "b"))
    log.do(attach("c", joining_at=10))
    log.do(Detach("b"))
    assert verdict(log.do(RestartOutput(1, 50, {"a": 50, "c": None}))) is None
    ledger = log.ledger
    assert (ledger.output.number, ledger.output.correct_from, ledger.output.since) == (1, 50, 4)
    assert desired_states(ledger) == {"a": "attached", "b": "detached", "c": "attached"}
    a, c = ledger.replicas["a"], ledger.replicas["c"]
    assert [(e.epoch, e.replica.joining_at) for e in (a, c)] == [(4, 50), (4, None)]
    assert not a.decided, "the file rules it as before"


@pytest.mark.parametrize(
    ("action", "why"),
    [
        (RestartOutput(1, 50, {"a": 50, "b": 50}), "state: the output is in incarnation 1 already"),
        (RestartOutput(2, 50, {"a": 50}), "state: it is about other replicas than are attached"),
    ],
)
def test_one_that_came_too_late_is_refused(action: RestartOutput, why: str) -> None:
    log = Log(ledger_topology("a", "b"))
    log.do(RestartOutput(1, 40, {"a": 40, "b": 40}))
    assert (verdict(log.do(action)) or "").startswith(why)
    assert log.ledger.output.number == 1


def test_another_policy_or_replica_leaves_the_incarnation_and_a_file_as_it_was_the_times() -> None:
    """A file that changes elsewhere does not attach again what was declared as it is now."""
    log = Log(ledger_topology("a", "b"))
    log.do(RestartOutput(1, 40, {"a": 40, "b": 40}))
    log.do(SetPolicy("first", "eager", "max"))
    log.do(Attach({"name": "c", "topic": "C"}))
    changed = ledger_topology("a", "b", "d")
    log.declare(changed)
    ledger = log.ledger
    assert ledger.output == log.again().output
    assert ledger.output.number == 1
    assert [ledger.replicas[n].replica.joining_at for n in "abcd"] == [40, 40, None, None]
    assert ledger.replicas["a"].epoch == 2
    log.declare(ledger_topology("b", replicas=[{"name": "b", "topic": "elsewhere"}]))
    assert log.ledger.replicas["b"].replica.joining_at is None


# --- the merge -----------------------------------------------------------------------------------


@pytest.mark.parametrize("case", [Case.R3, Case.R4])
@pytest.mark.parametrize("seed", range(12))
def test_who_lacks_what_ends_before_gives_an_output_that_is_right_from_then_on(
    case: Case, seed: int
) -> None:
    """All replicas lack some of what ends before the time, each other events; none waits."""
    chance, lives = random.Random(seed), logical(120, seed)
    since = chance.choice(lives).ve
    merge, emitted = lmerge(case), list[Element]()
    streams: dict[str, list[Element]] = {}
    for name in ("a", "b", "c"):
        held = [life for life in lives if life.ve >= since or chance.random() < 0.5]
        variation = Variation(stable_every=9, disorder=0.3, displacement=50)
        streams[name] = list(present(held, variation, f"{seed}/{name}"))
    inputs = {name: OperatorInput(merge, name, suffices_from=since) for name in ("b", "c")}
    inputs["a"] = OperatorInput(merge, "a", joining_at=since, suffices_from=since)
    assert merge.gap is None
    while any(streams.values()):
        name = chance.choice([name for name, stream in streams.items() if stream])
        some, streams[name] = streams[name][:5], streams[name][5:]
        emitted += inputs[name].process(some)
        merge.check()
    tdb = TDB()
    for each in emitted:
        tdb.apply(each)
    assert tdb.stable == INFINITY
    right = meaning(lives)
    assert {e for e in tdb if e.ve >= since} == {e for e in right if e.ve >= since}


def test_an_ordered_case_emits_also_what_began_before() -> None:
    merge = lmerge(Case.R1)
    joined = OperatorInput(merge, "a", joining_at=50, suffices_from=50)
    later = OperatorInput(merge, "b", joining_at=51, suffices_from=50)
    assert joined.process([Insert("p", 10, 90)]) == [Insert("p", 10, 90)]
    assert later.process([Stable(60)]) == []
    assert [each.joined for each in merge.inputs.values()] == [True, False]


def test_a_replica_that_starts_over_meanwhile_is_held_to_the_same_time() -> None:
    merge = lmerge()
    step = OperatorInput(merge, "a", suffices_from=50)
    assert merge.inputs["a"].joining_at == 50, "before that it is not compared with the output"
    step.begin(40, 1)
    assert (merge.inputs["a"].joined, merge.inputs["a"].joining_at) == (True, 50)
    step.begin(60, 1)
    assert merge.gap is not None
    assert merge.gap.end == 60
