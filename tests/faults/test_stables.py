"""Replays of stable points that stand still, fall, run away, or lie at the end of time."""

import pytest

from lmerge_service.core import BreachKind, Policy, quorum
from lmerge_service.drills.history import ProgressDemand
from lmerge_service.drills.verdicts import Outcome
from lmerge_service.elements import INFINITY, Insert, Stable
from lmerge_service.errors import ElementError
from lmerge_service.formats.wire import WireDecoder, encode
from tests.faults.bench import Bench, assert_valid
from tests.faults.test_failover import event


@pytest.mark.parametrize("until", [0, 100])
def test_w1_a_silent_replica_does_not_hold_the_output_back(until: int) -> None:
    """arroyo#222, risingwave#11554, numaflow#890, samza#1705: one idle input blocks all."""
    bench = Bench("a", "b")
    for k in range(200):
        bench.publish("a", event(k), Stable(k))
        if k < until:
            bench.publish("b", event(k), Stable(k))
    assert bench.merge.max_stable == 199
    assert_valid(bench.report(progress=ProgressDemand(10)))


def test_w1_a_silent_partition_holds_its_own_replica_back_and_no_other() -> None:
    """risingwave#11783: the minimum is over the partitions of one replica, not over replicas."""
    bench = Bench("a", "b", partitions=4)
    for k in range(100):
        for number in range(3):  # the fourth publishes nothing
            bench.publish_bytes("a", encode(event(4 * k + number)), partition=number)
            bench.publish_bytes("a", encode(Stable(k)), partition=number)
    assert bench.merge.max_stable < 0
    for k in range(50):
        bench.publish("b", event(4 * k), partition=k % 4)
        bench.publish("b", Stable(k))
    assert bench.merge.max_stable == 49
    report = bench.report(progress=ProgressDemand(10))
    assert {report[k].outcome for k in ("K2", "K4", "K5")} == {Outcome.VALID}


def test_w3_small_regressions_are_ignored_and_counted() -> None:
    """numaflow#3424: tiny watermark regressions stalled propagation for ever."""
    bench = Bench("a", "b")
    for vc in (100, 99, 101, 100, 102):
        bench.publish("a", Stable(vc))
    assert [record.value for record in bench.emitted] == [
        encode(Stable(vc)) for vc in (100, 101, 102)
    ]
    assert bench.breaches("a")[BreachKind.STABLE_REGRESSION] == 2
    assert_valid(bench.report(progress=ProgressDemand(10)))


def test_w6_one_runaway_stable_does_not_move_a_quorum() -> None:
    """laminardb#388, sql-flow#358: one far-future event makes all later data late."""
    bench = Bench("a", "b", "c", policy=Policy(stable=quorum(2)))
    day = 86_400_000
    bench.publish("a", Insert(b'"far"', day, day + 1), Stable(day))
    for k in range(100):
        for name in "bc":
            bench.publish(name, event(k), Stable(k))
    assert bench.merge.max_stable == 99
    assert_valid(bench.report(liars=["a"], progress=ProgressDemand(50, quorum=2)))


def test_w7_behind_the_own_stable_is_a_fault_and_behind_the_outputs_is_a_laggards_life() -> None:
    """laminardb#65, numaflow#494, #696: what is behind the watermark is dropped wrongly."""
    bench = Bench("a", "b")
    bench.publish("a", event(10), Stable(50))
    bench.publish("b", event(10), Stable(20), event(30), event(15))
    behind = bench.merge.inputs["b"]
    assert bench.breaches("b")[BreachKind.BROKE_OWN_STABLE] == 1, "15 is below its own 20"
    assert behind.late == 2, "10 and 30 are below the output's 50, and no fault"
    assert bench.report(liars=["b"]).outcome is Outcome.VALID


def test_w8_a_replica_that_starts_over_far_behind_moves_nothing_back() -> None:
    """materialize#17681, #27484: a rehydrating replica reports a frontier below its start."""
    bench = Bench("a", "b")
    bench.publish("a", *map(event, range(1, 90)), Stable(90))
    bench.attach("a")
    assert bench.publish("a", *map(event, range(1, 10)), Stable(10)) == []
    assert bench.merge.max_stable == 90
    bench.kill()
    bench.publish("a", *map(event, range(10, 100)), Stable(95))
    assert bench.merge.max_stable == 95
    assert_valid(bench.report())


LARGEST = 2**63 - 2


@pytest.mark.parametrize("time", [0, -1, 2**53, 2**53 + 1, LARGEST])
def test_w9_times_are_exact_up_to_the_last_one(time: int) -> None:
    """materialize#27059, timescaledb#2161, #2263, #2310, influxdb#3369, noisepage#1449."""
    element = Insert(b'"x"', time, min(time + 1, LARGEST) if time < LARGEST else INFINITY)
    assert WireDecoder().decode(encode(element)) == element
    assert WireDecoder().decode(b'{"op":"stable","vc":%d}' % time) == Stable(time)
    bench = Bench("a")
    bench.publish("a", element, Stable(time), Stable(INFINITY))
    assert_valid(bench.report())


@pytest.mark.parametrize("text", [b"null", b"9223372036854775807"])
def test_w9_the_end_of_time_is_infinity_by_rule(text: bytes) -> None:
    decoded = WireDecoder().decode(b'{"op":"insert","payload":1,"vs":0,"ve":%b}' % text)
    assert decoded == Insert(b"1", 0, INFINITY)
    assert b'"ve":null' in encode(decoded)


@pytest.mark.parametrize(
    "text", [b"9223372036854775808", b"1e400", b'"Infinity"', b"1e3", b"5.0", b"Infinity", b"true"]
)
def test_w9_what_is_no_time_is_refused_at_the_door(text: bytes) -> None:
    """xtdb#5009: a valid time out of range was "committed"."""
    with pytest.raises(ElementError):
        WireDecoder().decode(b'{"op":"insert","payload":1,"vs":0,"ve":%b}' % text)
    bench = Bench("a")
    bench.publish_bytes("a", b'{"op":"stable","vc":%b}' % text)
    assert len(bench.dead) == 1
    assert bench.emitted == []
