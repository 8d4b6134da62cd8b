"""What a plan does about records that are gone, without Spark and Kafka."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lmerge_service.config.topology import Topology
from lmerge_service.errors import StateError
from lmerge_service.kafka.source import TopicPartition
from lmerge_service.merge.decisions.records import Attach, Decision, Detach, encode
from lmerge_service.spark.merge.checkpoint import align, committed, planned, unplan
from lmerge_service.spark.merge.plan import MergePlan, PlanStep
from lmerge_service.spark.merge.planning import KafkaView, Planned, next_step, unreadable
from tests.spark.merge import batches

Places = Mapping[str, Mapping[int, tuple[int, int]]]


def seen(logs: Places) -> KafkaView:
    """Topics with where each partition begins and ends; planned batches have read what is there."""
    found = batches.seen_of({name: len(places) for name, places in logs.items()})
    for name, places in logs.items():
        for number, (begins, ends) in places.items():
            place = TopicPartition(f"t.{name}", number)
            found.beginnings[place], found.ends[place] = begins, ends  # type: ignore[index]
    return found


def read(batch: int, **topics: Mapping[int, int]) -> Planned:
    return Planned(batch, {f"t.{name}": at for name, at in topics.items()})


def topology(**fields: Any) -> Topology:
    return batches.topology_of("ab", **fields)


def step(plan: MergePlan, ledger: object, found: KafkaView, known: Planned) -> PlanStep | None:
    found.read = known.topics
    return next_step(plan, ledger, found, known)  # type: ignore[arg-type]


def test_n15_a_log_that_begins_behind_what_is_next_is_lost() -> None:
    plan, ledger = batches.planned(topology(), {"a": 1, "b": 1})
    known = read(3, a={0: 6}, b={0: 6})
    assert step(plan, ledger, seen({"a": {0: (6, 13)}, "b": {0: (0, 13)}}), known) is None
    found = step(plan, ledger, seen({"a": {0: (7, 13)}, "b": {0: (0, 13)}}), known)
    assert found is not None
    assert [*found.topics] == ["t.b"]
    assert found.lost["a"].why.startswith("partition 0 begins at offset 7, and 6 is the next")
    assert found.since == 3


def test_n15_a_log_that_ends_before_what_was_read_is_lost() -> None:
    plan, ledger = batches.planned(topology(), {"a": 2, "b": 1})
    known = read(3, a={0: 6, 1: 9}, b={0: 6})
    found = step(plan, ledger, seen({"a": {0: (0, 6), 1: (0, 4)}, "b": {0: (0, 6)}}), known)
    assert found is not None
    assert found.lost["a"].why.startswith("partition 1 ends at offset 4, and was read up to 9")


def test_n15_ends_are_compared_with_what_was_read_before_they_were_asked_for() -> None:
    """A query that runs goes on while the topics are looked at."""
    plan, ledger = batches.planned(topology(), {"a": 1, "b": 1})
    found = seen({"a": {0: (0, 6)}, "b": {0: (0, 6)}})
    found.read = {"t.a": {0: 6}, "t.b": {0: 6}}
    assert next_step(plan, ledger, found, read(4, a={0: 8}, b={0: 8})) is None


def test_n15_a_new_partition_must_have_its_beginning_unless_it_was_read_already() -> None:
    plan, ledger = batches.planned(topology(), {"a": 1, "b": 1})
    found = seen({"a": {0: (0, 6), 1: (2, 4)}, "b": {0: (0, 6)}})
    lost = step(plan, ledger, found, read(3, a={0: 6}, b={0: 6}))
    assert lost is not None
    assert lost.lost["a"].why.startswith("partition 1 begins at offset 2, and 0 is the next")
    wider = step(plan, ledger, found, read(3, a={0: 6, 1: 3}, b={0: 6}))
    assert wider is not None
    assert (wider.lost, [*wider.widens]) == ({}, ["a"])


def test_n15_who_is_lost_stays_out_until_it_is_attached_anew_or_its_topic_is_another() -> None:
    """Also where the replica joins late: what it is correct from was before the loss."""
    plan, ledger = batches.planned(
        Topology.model_validate(
            {
                **topology().model_dump(mode="json", exclude_unset=True),
                "replicas": [
                    {"name": "a", "topic": "t.a", "joining_at": 3},
                    {"name": "b", "topic": "t.b"},
                ],
            }
        ),
        {"a": 1, "b": 1},
    )
    logs = {"a": {0: (7, 13)}, "b": {0: (0, 13)}}
    found = step(plan, ledger, seen(logs), read(3, a={0: 6}, b={0: 6}))
    assert found is not None
    plan = plan.with_step(found)
    without = read(4, b={0: 13})
    assert step(plan, ledger, seen(logs), without) is None

    recreated = seen(logs)
    info = recreated.topics["t.a"]
    recreated.topics["t.a"] = type(info)("another", 1)  # type: ignore[index]
    begun = step(plan, ledger, recreated, without)
    assert begun is not None
    assert [*begun.begins] == ["a"]

    values = []
    for action in (Detach("a"), Attach({"name": "a", "topic": "t.a", "joining_at": 9})):
        values.append(encode(Decision(f"d{ledger.offset}", action, "anna", made=0)))
        ledger.fold(ledger.offset, values[-1])
    attached = seen(logs)
    attached.decisions = values
    begun = step(plan, ledger, attached, without)
    assert begun is not None
    assert begun.begins["a"].beginnings == [7]
    plan = plan.with_step(begun)
    assert plan.lost() == {}
    assert plan.starts() == {"t.a": [7], "t.b": [0]}
    assert step(plan, ledger, seen(logs), read(5, a={0: 7}, b={0: 13})) is None


def test_n15_a_planned_batch_can_be_run_if_its_own_records_are_there() -> None:
    plan, _ = batches.planned(topology(), {"a": 1, "b": 1})
    done, pending = read(3, a={0: 6}, b={0: 6}), read(4, a={0: 6}, b={0: 13})
    gone = {"a": {0: (9, 13)}, "b": {0: (0, 13)}}
    assert unreadable(plan, seen(gone), done, pending) is None, "it has none of a"
    pending = read(4, a={0: 10}, b={0: 13})
    why = unreadable(plan, seen(gone), done, pending)
    assert why is not None
    assert why.startswith("topic t.a partition 0 begins at offset 9, and 6 is the next to merge")
    assert unreadable(plan, seen(gone), pending, pending) is None, "it is complete"
    assert unreadable(plan, seen({"a": {0: (0, 8)}, "b": {0: (0, 13)}}), done, pending)
    missing = seen({"b": {0: (0, 13)}})
    assert unreadable(plan, missing, done, pending) is None, "it may come back"
    missing.deleted = frozenset({"t.a"})
    assert unreadable(plan, missing, done, pending) == "topic t.a was deleted"
    assert unreadable(plan, missing, done, read(4, b={0: 13})) == "topic t.a was deleted"


def test_a_batch_that_is_planned_anew_goes_by_the_steps_of_then() -> None:
    plan, ledger = batches.planned(topology(), {"a": 1, "b": 1})
    plan = batches.decided(plan, ledger, {"b": 1}, Detach("a"), batch=4, known=["t.a", "t.b"])
    assert [*plan.topics_at(3)] == ["t.a", "t.b"]
    again = plan.unplanned(3)
    assert [*again.topics_at(3)] == ["t.b"]
    assert again.with_step(PlanStep(3, [], {}, {}, {}, {})).topics_at(3) == {}


def test_steps_that_are_folded_come_to_the_same() -> None:
    """In the file, too: what is read with a batch, from where, what is lost, what was decided."""
    widths = {"a": 1, "b": 1, "c": 2}
    plan, ledger = batches.planned(topology(), widths)
    known = ["t.a", "t.b"]
    attach = Attach({"name": "c", "topic": "t.c"})
    plan = batches.decided(plan, ledger, widths, attach, batch=2, known=known)
    gone = batches.seen_of(widths)
    gone.beginnings[TopicPartition("t.b", 0)] = 7  # type: ignore[index]
    lost = step(plan, ledger, gone, read(3, a={0: 0}, b={0: 6}, c={0: 0, 1: 0}))
    assert lost is not None
    plan = plan.with_step(lost).with_due()
    plan = batches.decided(plan, ledger, widths, Detach("a"), batch=5, known=[*known, "t.c"])
    folded = msgspec.json.decode(msgspec.json.encode(plan.fold(topology(), 7)), type=MergePlan)
    assert (folded.folded_steps, len(folded.steps), folded.count) == (3, 1, plan.count)
    for batch in (3, 4, 5, 9):
        assert folded.topics_at(batch) == plan.topics_at(batch)
    assert (folded.starts(), folded.lost()) == (plan.starts(), plan.lost())
    assert "b" in folded.lost()
    for steps in (3, 4):
        one, other = (each.ledger(topology(), steps) for each in (plan, folded))
        assert (one.offset, one.state()) == (other.offset, other.state())
    assert other.offset == ledger.offset, "the next record of the log is the next one"
    with pytest.raises(StateError, match="has the state of step 2, and the plan begins at step 3"):
        folded.behind(2)
    twice = batches.decided(folded.with_due(), ledger, widths, Detach("c"), batch=6)
    assert twice.fold(topology(), 8).ledger(topology(), 5).state() == ledger.state()


# --- Spark's own files --------------------------------------------------------------------------

CHECKPOINT = 'v1\n{"batchWatermarkMs":0}\n{"t.a":{"0":6},"t.control":{"0":1}}'


def test_spark_reads_next_what_the_last_file_names(tmp_path: Path) -> None:
    checkpoint = str(tmp_path)
    for log in ("offsets", "commits", "sources/0"):
        (tmp_path / log).mkdir(parents=True)
    (tmp_path / "sources" / "0" / "0").write_text("v1")
    align(checkpoint, {"t.b": {0: 2}})
    assert not (tmp_path / "sources" / "0" / "0").exists(), "what it is started with counts"
    (tmp_path / "offsets" / "0").write_text(CHECKPOINT)
    (tmp_path / "offsets" / ".0.crc").write_bytes(b"of what it was")
    (tmp_path / "commits" / "0").write_text("v1\n{}")
    assert (
        planned(checkpoint)
        == committed(checkpoint)
        == Planned(1, {"t.a": {0: 6}, "t.control": {0: 1}})
    )
    align(checkpoint, {"t.b": {0: 2, 1: 3}, "t.control": {0: 1}})
    lines = (tmp_path / "offsets" / "0").read_text().splitlines()
    assert lines[:2] == CHECKPOINT.splitlines()[:2]
    assert json.loads(lines[2]) == {"t.b": {"0": 2, "1": 3}, "t.control": {"0": 1}}
    assert [each.name for each in (tmp_path / "offsets").iterdir()] == ["0"]
    (tmp_path / "offsets" / "1").write_text(CHECKPOINT)
    (tmp_path / "offsets" / ".1.crc").write_bytes(b"")
    assert planned(checkpoint).next == 2
    unplan(checkpoint, 1)
    assert planned(checkpoint) == Planned(1, {"t.b": {0: 2, 1: 3}, "t.control": {0: 1}})
    assert [each.name for each in (tmp_path / "offsets").iterdir()] == ["0"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("v2\n{}\n{}", "is of version v2, and v1 is known"),
        ("v1\n{}", "is damaged"),
        ("v1\n{}\n7", "is damaged"),
        ("", "is damaged"),
    ],
)
def test_files_that_spark_did_not_write_are_refused(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "0").write_text(text)
    with pytest.raises(StateError, match=why):
        planned(str(tmp_path))
