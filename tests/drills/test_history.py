"""The judge: each check passes what is right, and is shown to fail on what it is there for."""

from dataclasses import replace

import pytest

from lmerge_service.drills.history import (
    History,
    Interval,
    ProgressDemand,
    ReplicaHistory,
    check,
    tally,
)
from lmerge_service.drills.observability_checks import Capture, InjectedFault
from lmerge_service.drills.records import CommittedRecord, CommittedTopic
from lmerge_service.drills.verdicts import Outcome, WrongEvents, worst
from lmerge_service.elements import Adjust, Element, Insert, Stable
from lmerge_service.tdb import TDB
from tests.drills.histories import A, B, C, emitting, good, records, topic

VALID, INVALID, UNKNOWN = Outcome.VALID, Outcome.INVALID, Outcome.UNKNOWN


def failing(history: History) -> list[str]:
    """The checks that are not valid."""
    return [found.check for found in check(history).findings if found.outcome is not VALID]


def test_a_good_history_is_valid_and_only_what_it_contains_is_asked() -> None:
    report = check(good())
    assert report.outcome is VALID
    assert [found.check for found in report.findings] == ["K1", "K2", "K3", "K4"]
    with pytest.raises(KeyError, match="K5 was not asked"):
        report["K5"]


def test_the_worst_decides() -> None:
    assert worst([VALID, UNKNOWN]) is UNKNOWN
    assert worst([INVALID, UNKNOWN]) is INVALID
    assert worst([]) is VALID


def test_a_tally_counts_what_is_lost_what_is_contradicted_and_what_is_doubled() -> None:
    assert tally(good()) == WrongEvents()
    assert tally(emitting(Insert(A, 1, 9), Stable(10))) == WrongEvents(lost=1)
    wrong = emitting(Insert(A, 1, 8), Insert(B, 3, 20), Insert(C, 4, 6), Stable(10))
    assert tally(wrong) == WrongEvents(contradicted=2), "an end, and what is not so"
    twice = emitting(Insert(A, 1, 9), Insert(B, 3, 20), Insert(B, 3, 20), Stable(10))
    assert tally(twice) == WrongEvents(doubled=1)
    assert tally(emitting(Insert(A, 1, 9), Insert(B, 3, 20), Insert(C, 11, 12))) == WrongEvents(), (
        "nothing is final"
    )
    lost = replace(good(), output=replace(good().output, beginning_lost=True))
    assert tally(lost) is None


# --- K1 -------------------------------------------------------------------------------------------


def test_k1_an_event_that_is_missing_is_named() -> None:
    found = check(emitting(Insert(A, 1, 9), Stable(10)))["K1"]
    assert found.outcome is INVALID
    assert found.evidence == ('OUT lacks "B" [3, 10), cut at 10',)


def test_k1_an_event_that_is_not_so_is_named() -> None:
    found = check(emitting(Insert(A, 1, 9), Insert(B, 3, 20), Insert(C, 4, 6), Stable(10)))["K1"]
    assert found.evidence == ('OUT has "C" [4, 6), cut at 10, which is not in the reference',)


def test_k1_a_wrong_end_that_is_final_is_invalid_and_one_that_may_move_is_not() -> None:
    wrong = emitting(Insert(A, 1, 8), Insert(B, 3, 20), Stable(10))
    assert failing(wrong) == ["K1"]
    assert failing(emitting(Insert(A, 1, 9), Insert(B, 3, 11), Stable(10))) == []


def test_k1_what_the_output_may_still_take_back_does_not_count() -> None:
    tail = Insert(b'"phantom"', 11, 13)
    assert failing(emitting(Insert(A, 1, 9), Insert(B, 3, 20), Stable(10), tail)) == []


def test_k1_replicas_that_disagree_give_no_reference() -> None:
    disagreeing = ReplicaHistory(topic("b", [Insert(A, 1, 7), Insert(B, 3, 20), Stable(10)]))
    history = replace(good(), replicas={"a": good().replicas["a"], "b": disagreeing})
    assert check(history)["K1"].outcome is UNKNOWN
    liar = replace(disagreeing, honest=False)
    assert failing(replace(history, replicas={**history.replicas, "b": liar})) == []


def test_k1_by_a_reference_that_is_given() -> None:
    reference = TDB([(A, 1, 9), (B, 3, 20), (C, 12, 15)])
    assert failing(replace(good(), reference=reference)) == []
    lacking = TDB([(A, 1, 9)])
    assert failing(replace(good(), reference=lacking)) == ["K1"]


def test_k1_what_no_replica_has_reached_is_not_known() -> None:
    behind = ReplicaHistory(topic("a", [Insert(A, 1, 9), Insert(B, 3, 20), Stable(5)]))
    furthest = replace(good().replicas["b"], honest=False)
    found = check(replace(good(), replicas={"a": behind, "b": furthest}))["K1"]
    assert found.outcome is UNKNOWN
    assert found.evidence == ("the reference is final to 5 only, OUT to 10",)


def test_k1_without_a_beginning_nothing_is_known() -> None:
    history = replace(good(), output=replace(good().output, beginning_lost=True))
    assert check(history)["K1"].outcome is UNKNOWN
    assert check(history).outcome is UNKNOWN


def test_k1_of_several_output_partitions_is_about_their_union() -> None:
    def out(second: list[CommittedRecord]) -> History:
        first = records("out", [Insert(A, 1, 9), Stable(10)], at=50)
        return replace(good(), output=CommittedTopic("out", (*first, *second), partitions=2))

    whole = records("out", [Insert(B, 3, 20), Stable(10)], partition=1, at=50)
    assert failing(out(whole)) == []
    assert failing(out(records("out", [Stable(10)], partition=1, at=50))) == ["K1", "K3"]
    assert (
        failing(out(whole[:1])) == []
    )  # the second has published nothing: nothing is final of both
    ahead = CommittedTopic(
        "out",
        tuple(records("out", [Insert(A, 1, 9), Insert(C, 2, 5), Stable(10)], at=50)),
        partitions=2,
    )
    assert failing(replace(good(), output=ahead)) == ["K1"]  # wrong, however far the other is


# --- K2 -------------------------------------------------------------------------------------------


def test_k2_a_key_that_is_there_twice() -> None:
    history = emitting(Insert(A, 1, 9), Insert(A, 1, 5), Insert(B, 3, 20), Stable(10))
    assert failing(history) == ["K1", "K2"]
    assert "is held since out-0@0" in check(history)["K2"].evidence[0]


def test_k2_an_event_may_come_again_once_it_was_removed() -> None:
    elements: list[Element] = [
        Insert(A, 1, 9),
        Adjust(A, 1, 9, 1),
        Insert(A, 1, 9),
        Insert(B, 3, 20),
        Stable(10),
    ]
    assert failing(emitting(*elements)) == []


def test_k2_a_key_in_two_partitions() -> None:
    first = records("out", [Insert(A, 1, 9), Insert(B, 3, 20)], at=50)
    second = records("out", [Insert(A, 1, 9)], partition=1, at=50)
    output = CommittedTopic("out", (*first, *second), partitions=2)
    assert failing(replace(good(), output=output)) == ["K2"]


def test_k2_of_a_multiset_counts_how_often() -> None:
    twice: list[Element] = [Insert(A, 1, 5), Insert(A, 1, 5), Stable(9)]
    history = History(
        output=topic("out", twice, at=50),
        replicas={"a": ReplicaHistory(topic("a", twice))},
        keyed=False,
    )
    assert failing(history) == []
    thrice = topic("out", [Insert(A, 1, 5), *twice], at=50)
    assert failing(replace(history, output=thrice)) == ["K1", "K2"]
    once = replace(history, output=topic("out", twice[1:], at=50))
    assert failing(once) == ["K1", "K3"]


# --- K3 -------------------------------------------------------------------------------------------


def lost_by_a_leader() -> History:
    """b leads and leaves out B, which a published and froze."""
    return History(
        output=topic("out", [Insert(A, 1, 9), Stable(10)], at=50),
        replicas={
            "a": ReplicaHistory(topic("a", [Insert(A, 1, 9), Insert(B, 3, 20), Stable(10)])),
            "b": ReplicaHistory(topic("b", [Insert(A, 1, 9), Stable(10)]), honest=False),
        },
    )


def test_k3_what_an_attached_replica_published_is_missing() -> None:
    found = check(lost_by_a_leader())["K3"]
    assert found.outcome is INVALID
    assert found.evidence == ('OUT lacks what a published and froze: "B" [3, 20) at a-0@2',)


def test_k3_what_a_detached_replica_published_may_be_missing() -> None:
    history = lost_by_a_leader()
    detached = replace(history.replicas["a"], attached=(Interval(0, 5),))
    apart = replace(history, replicas={**history.replicas, "a": detached})
    assert check(apart)["K3"].outcome is VALID


def test_k3_what_is_not_frozen_or_not_reached_may_be_missing() -> None:
    history = lost_by_a_leader()
    unfrozen = ReplicaHistory(topic("a", [Insert(A, 1, 9), Insert(B, 3, 20), Stable(3)]))
    free = replace(history, replicas={**history.replicas, "a": unfrozen})
    assert check(free)["K3"].outcome is VALID
    waiting = replace(history, output=topic("out", [Insert(A, 1, 9), Stable(3)], at=50))
    assert check(waiting)["K3"].outcome is VALID


def test_k3_a_joining_replica_answers_only_for_what_ends_later() -> None:
    history = lost_by_a_leader()

    def joining(at: int) -> History:
        published: list[Element] = [Insert(A, 1, 9), Insert(B, 3, 20), Stable(10)]
        life = CommittedTopic("a", tuple(records("a", published, incarnation=1, joining_at=at)))
        return replace(history, replicas={**history.replicas, "a": ReplicaHistory(life)})

    assert check(joining(21))["K3"].outcome is VALID
    assert check(joining(20))["K3"].outcome is INVALID


# --- K4 -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "tail",
    [
        Stable(9),
        Insert(b'"late"', 2, 30),
        Adjust(A, 1, 9, 12),
        Adjust(B, 3, 19, 30),
        Adjust(B, 3, 20, 3),
    ],
)
def test_k4_nothing_later_contradicts_a_stable(tail: Stable | Insert[bytes]) -> None:
    history = emitting(Insert(A, 1, 9), Insert(B, 3, 20), Stable(10), tail)
    assert failing(history) == ["K4"]


def test_k4_the_output_never_passes_the_replicas() -> None:
    ahead = emitting(Insert(A, 1, 9), Insert(B, 3, 20), Stable(11))
    found = check(ahead)["K4"]
    assert found.outcome is INVALID
    assert "no replica was past 10" in found.evidence[0]


def test_k4_nor_was_it_ahead_at_any_time() -> None:
    early = emitting(Insert(A, 1, 9), Insert(B, 3, 20), Stable(10), at=-5_000)
    assert failing(early) == ["K4"]
    assert failing(replace(early, skew_ms=6_000)) == []


def test_k4_a_replica_that_must_not_lead_does_not_count() -> None:
    runaway = ReplicaHistory(topic("c", [Stable(99)]), honest=False)
    history = replace(
        emitting(Insert(A, 1, 9), Insert(B, 3, 20), Stable(99)),
        replicas={**good().replicas, "c": runaway},
    )
    assert check(history)["K4"].outcome is VALID
    stopped = {**history.replicas, "c": replace(runaway, may_lead=False)}
    assert check(replace(history, replicas=stopped))["K4"].outcome is INVALID


def test_k4_a_silent_partition_holds_its_replica_back() -> None:
    wide = ReplicaHistory(replace(good().replicas["a"].topic, partitions=2))
    history = replace(good(), replicas={"a": wide})
    assert check(history)["K4"].outcome is INVALID


def test_k4_a_record_that_is_no_element() -> None:
    odd = CommittedRecord("out", 0, 99, 100, b"?")
    output = replace(good().output, records=(*good().output.records, odd))
    assert failing(replace(good(), output=output)) == ["K4"]


# --- K5 -------------------------------------------------------------------------------------------


def test_k5_the_output_follows_in_time_or_not() -> None:
    # a and b are at stable(10) after 20 and 30 ms, the output after 70
    assert failing(replace(good(), progress=ProgressDemand(50))) == []
    late = check(replace(good(), progress=ProgressDemand(49)))["K5"]
    assert late.outcome is INVALID
    assert late.evidence == ("OUT-0 was not at 10 by 69, 49 ms after 20",)
    assert failing(replace(good(), progress=ProgressDemand(40, quorum=2))) == []


def test_k5_whether_the_output_would_have_come_is_not_known() -> None:
    silent = replace(emitting(), progress=ProgressDemand(500))
    assert check(silent)["K5"].outcome is UNKNOWN
    waited = replace(emitting(), progress=ProgressDemand(500, read_at=520))
    assert check(waited)["K5"].outcome is INVALID


def test_k5_a_lag_is_allowed_and_a_liar_need_not_be_followed() -> None:
    behind = emitting(Insert(A, 1, 9), Stable(6), at=40)
    assert check(replace(behind, progress=ProgressDemand(50, read_at=100)))["K5"].outcome is INVALID
    assert check(replace(behind, progress=ProgressDemand(50, lag=4)))["K5"].outcome is VALID
    liars = {name: replace(replica, honest=False) for name, replica in behind.replicas.items()}
    lying = replace(behind, replicas=liars, progress=ProgressDemand(50, read_at=100))
    assert check(lying)["K5"].outcome is VALID


# --- K7 and K8 ------------------------------------------------------------------------------------


def test_k7_is_the_worst_of_what_kills_could_break() -> None:
    assert check(replace(good(), kills=3))["K7"].outcome is VALID
    broken = check(replace(emitting(Insert(A, 1, 9), Stable(10)), kills=3))["K7"]
    assert broken.outcome is INVALID
    assert broken.evidence[0].startswith("after 3 kills, K1: OUT lacks")


FAULT = InjectedFault("a", "faults_total", "not an element", "not elements", partition=0, offset=7)
SHOWN = Capture(
    status={"health": "degraded", "reasons": ["replica a: 1 records are not elements"]},
    metrics='# TYPE faults counter\nfaults_total{replica="a"} 1.0\n',
    log='starting\n{"event": "not an element", "replica": "a", "partition": 0, "offset": 7}\n',
)


def test_k8_a_fault_that_shows_everywhere() -> None:
    assert failing(replace(good(), faults=[FAULT], capture=SHOWN)) == []


@pytest.mark.parametrize(
    ("hidden", "missing"),
    [
        ({"metrics": ""}, "no metric"),
        ({"metrics": SHOWN.metrics.replace("1.0", "0.0")}, "counts 0"),
        ({"metrics": SHOWN.metrics.replace('"a"', '"b"')}, "no metric"),
        ({"log": ""}, "no log line"),
        ({"log": SHOWN.log.replace("7", "8")}, "no log line with {'partition': 0, 'offset': 7}"),
        ({"status": {"health": "ok", "reasons": []}}, "health is ok"),
        ({"status": {"health": "degraded", "reasons": ["other"]}}, "no reason"),
    ],
)
def test_k8_a_trace_that_is_missing_is_named(hidden: dict[str, object], missing: str) -> None:
    capture = replace(SHOWN, **hidden)  # type: ignore[arg-type]
    found = check(replace(good(), faults=[FAULT], capture=capture))["K8"]
    assert found.outcome is INVALID
    assert missing in found.evidence[0]
    assert found.total == 1


def test_k8_without_a_capture_nothing_is_known() -> None:
    assert check(replace(good(), faults=[FAULT]))["K8"].outcome is UNKNOWN


# --- how replicas are read ------------------------------------------------------------------------


def test_a_replica_that_starts_over_is_its_last_life() -> None:
    first = records("a", [Insert(C, 1, 9), Insert(A, 1, 9)])
    second = records("a", [Insert(A, 1, 9), Insert(B, 3, 20), Stable(10)], start=10, incarnation=1)
    stale = records("a", [Insert(C, 2, 9)], start=20)
    replicas = {"a": ReplicaHistory(CommittedTopic("a", (*first, *second, *stale)))}
    assert failing(replace(good(), replicas=replicas)) == []


def test_what_breaks_a_replicas_own_stable_does_not_count() -> None:
    published: list[Element] = [Insert(A, 1, 9), Insert(B, 3, 20), Stable(10)]
    repeated = ReplicaHistory(topic("a", [*published, *published, Adjust(A, 1, 9, 30), Stable(4)]))
    assert failing(replace(good(), replicas={"a": repeated})) == []


def test_evidence_is_bounded_and_counted() -> None:
    many = [Insert(b"%d" % k, 1, 5) for k in range(100)]
    report = check(emitting(*many, Insert(A, 1, 9), Insert(B, 3, 20), Stable(10)))
    assert (len(report["K1"].evidence), report["K1"].total) == (20, 100)
    assert "and 80 more" in str(report)
