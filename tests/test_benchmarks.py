"""Everything is measured and drawn from honest inputs; no measured value is asserted."""

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from benchmarks import (
    availability,
    figures,
    forward,
    inputs,
    jumpstart,
    kill_loop,
    policies,
    replay,
    service,
    soak,
    workload,
)
from benchmarks.replica import SECOND, Part, lives
from benchmarks.traffic import Arrivals
from lmerge_service.config.topology import load
from lmerge_service.core import Policy, lag, quorum
from lmerge_service.elements import INFINITY, Adjust, Element, Insert, Stable
from lmerge_service.kafka.connection import Connection
from lmerge_service.queries.costs.units import KINDS, UNITS, UnitCosts
from lmerge_service.tdb import TDB, reconstitute
from lmerge_service.workloads.lifetime import final_tdb

ALL = ["LMR0", "LMR1", "LMR2", "LMR3", "LMR3−", "LMR4"]
REVISING = ["LMR3", "LMR3−", "LMR4", "C+LMR1"]
FORMS = ["lifetimes revised", "counts replaced"]
INPUTS: list[float] = [2, 4, 6, 8, 10]
EXPECTED: dict[str, tuple[list[str], list[float], list[str]]] = {
    "fig2": (ALL, INPUTS, ["memory"]),
    "fig3": (ALL, INPUTS, ["throughput"]),
    "fig4": (
        [f"{who}, {form}" for who in ("one input", "LMR3") for form in FORMS],
        [0, 10, 20, 30, 40, 50],
        ["output size"],
    ),
    "fig5": (["LMR3", "LMR3−", "LMR4"], [0, 1, 2, 3, 4, 5], ["throughput"]),
    "fig6": (ALL, [0.001, 0.01, 0.1, 1], ["memory", "throughput"]),
    "fig7": (REVISING, INPUTS, ["memory", "throughput"]),
}


QUICK = ("fig5",)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(each, marks=pytest.mark.full if each in QUICK else pytest.mark.deep)
        for each in EXPECTED
    ],
)
def test_a_figure_has_a_row_for_each_point_of_each_line(name: str) -> None:
    lines, points, metrics = EXPECTED[name]
    rows = list(figures.measure(name, events=60, runs=1))
    assert sorted((row.line, row.x, row.metric) for row in rows) == sorted(
        (line, x, metric) for line in lines for x in points for metric in metrics
    )
    assert all(row.figure == name and min(row.values) >= 0 for row in rows)


def test_latency_is_of_both_ways_in_three_units() -> None:
    rows = list(figures.measure("latency", events=60, runs=2))
    units = ("elements", "s of application time", "µs")
    ways = [f"{kind}, {what}" for kind in ("LMR3", "C+LMR1") for what in ("mean", "median")]
    assert sorted((row.line, row.unit) for row in rows) == sorted(
        (way, unit) for way in ways for unit in units
    )
    assert all(len(row.values) == 2 for row in rows)


def test_the_same_rows_are_the_same_picture(tmp_path: Path) -> None:
    rows = [
        figures.Row("fig6", line, x, metric, unit, (x, x + 1))
        for line in ("LMR3", "LMR3−")
        for x in (0.1, 1.0)
        for metric, unit in (("memory", "MB"), ("throughput", "k events/s"))
    ]
    for name in ("one.svg", "two.svg"):
        figures.draw(rows, tmp_path / "new" / name)
    one, two = sorted((tmp_path / "new").iterdir())
    text = one.read_text()
    assert text == two.read_text()
    assert "<dc:date>" not in text
    for word in ("LMR3−", "memory, MB", "throughput, k events/s", "StableFreq, %"):
        assert word in text


def test_ordered_inputs_suit_every_case() -> None:
    one, two = workload.ordered(300, 2)
    for stream in (one, two):
        elements = [element for _, element in stream]
        assert {type(element) for element in elements} == {Insert, Stable}
        starts = [element.vs for element in elements if type(element) is Insert]
        assert starts == sorted(set(starts))
    assert reconstitute(e for _, e in one) == reconstitute(e for _, e in two)
    assert one != two, "their stables differ"


@pytest.mark.full
@pytest.mark.parametrize("count_in_payload", [False, True])
@pytest.mark.parametrize("disorder", [0.0, 0.5])
def test_presentations_stay_equivalent_through_the_sub_query(
    disorder: float, count_in_payload: bool
) -> None:
    streams = workload.sub_query(
        1_500, 3, disorder=disorder, stable_freq=0.01, count_in_payload=count_in_payload
    )
    one, *others = [reconstitute(element for _, element in stream) for stream in streams]
    assert all(other == one for other in others)
    assert one.stable == INFINITY
    keys = [(payload, vs) for payload, vs, _ in one]
    assert len(keys) == len(set(keys)), "fit for case R3"
    for stream in streams:
        revised = any(type(element) is Adjust for _, element in stream)
        assert revised == (disorder > 0), "nothing is late without disorder"
        times = [at for at, _ in stream]
        assert times == sorted(times)


def test_the_share_of_adjusts_is_the_papers() -> None:
    """36 % with 50 % disorder and StableFreq 0.1 %; seeded, so the same on any machine."""
    ((*stream,),) = workload.sub_query(6_000, 1)
    adjusts = sum(type(element) is Adjust for _, element in stream)
    assert 0.33 < adjusts / len(stream) < 0.39


ARRIVALS = [(1, 1, b"a"), (2, 4, b"b"), (3, 12, b"c"), (4, 7, b"d")]
"""(when it is sent, vs, a string)"""


def _counted(count_in_payload: bool = False) -> list[tuple[int, Element]]:
    stream: list[tuple[int, Element]] = [
        (at, Insert(b'{"data":"%b","key":0}' % name, vs, vs + 5)) for at, vs, name in ARRIVALS
    ]
    results = workload.counted(
        [*stream, (5, Stable(15)), (6, Stable(19)), (7, Stable(INFINITY))],
        window=10,
        hold=100,
        groups=1,
        count_in_payload=count_in_payload,
    )
    return list(results)


def test_a_late_event_prolongs_the_result_of_its_window() -> None:
    results = _counted()
    payload = results[0][1].payload  # type: ignore[union-attr]
    assert results == [
        (3, Insert(payload, 0, 200)),
        (4, Adjust(payload, 0, 200, 300)),
        (5, Stable(10)),
        (7, Insert(payload, 10, 110)),
        (7, Stable(INFINITY)),
    ]
    assert len(payload) > 1_000


def test_a_late_event_replaces_the_result_that_carries_its_count() -> None:
    elements = [element for _, element in _counted(count_in_payload=True)][:3]
    two, three = (element.payload for element in elements[::2])  # type: ignore[union-attr]
    assert two.startswith(b'{"count":2,')
    assert three.startswith(b'{"count":3,')
    assert elements == [Insert(two, 0, 200), Adjust(two, 0, 200, 0), Insert(three, 0, 300)]


def test_a_result_stands_for_a_window_at_least() -> None:
    with pytest.raises(ValueError, match="a window at least, got 9 < 10"):
        list(workload.counted([], window=10, hold=9))


def test_batches_come_in_order_of_sending_and_lose_nothing() -> None:
    streams = workload.disordered(200, (0, 500 * workload.MEAN_GAP), lifetime=40_000)
    batches = workload.in_time(streams)
    for number, stream in enumerate(streams):
        assert [e for k, batch in batches if k == number for e in batch] == [e for _, e in stream]
    numbers = [number for number, _ in batches]
    assert 1 not in numbers[:2], "the second input lags"
    assert 0 not in numbers[-2:]


def test_each_input_delivers_payload_objects_of_its_own() -> None:
    elements: list[Element] = [Insert(b"payload", 1, 5), Adjust(b"payload", 1, 5, 6), Stable(3)]
    own = workload.with_own_payloads(elements)
    assert own == elements
    payloads = [e.payload for e in (*elements, *own) if not isinstance(e, Stable)]
    assert len({id(payload) for payload in payloads[2:]} - {id(payloads[0])}) == 2


@pytest.mark.parametrize("kind", [*ALL, "C+LMR1"])
def test_all_that_is_compared_does_the_same_job(kind: str) -> None:
    ordered = kind in ("LMR0", "LMR1", "LMR2")
    streams = workload.ordered(400, 3) if ordered else workload.sub_query(400, 3, stable_freq=0.01)
    merge, output = figures._attached(kind, 3), TDB()
    for number, batch in workload.in_time(streams):
        for element in merge.process_batch(str(number), workload.with_own_payloads(batch)):
            output.apply(element)
    assert output == reconstitute(element for _, element in streams[0])
    assert output.stable == INFINITY


# --- policies -------------------------------------------------------------------------------------


@pytest.mark.full
def test_every_policy_puts_out_the_logical_stream_in_its_own_way() -> None:
    outcomes = {each.policy: each for each in policies.measure(600)}
    assert len(outcomes) == 4 * 3 * 3
    for policy, each in outcomes.items():
        assert each.inserts - each.removals == pytest.approx(1_000)
        assert each.stables > 0
        assert 0 <= each.first.mean <= each.first.p99
        assert 0 <= each.final.mean <= each.final.p99
        if policy.insert == "first":
            assert each.first.p99 == 0
        if policy.insert == "half_frozen":
            assert each.removals == 0
        if policy.voters == 1:
            assert each.behind == policy.lag
    assert outcomes[Policy(adjust="eager")].adjusts > outcomes[Policy()].adjusts > 0
    assert outcomes[Policy(insert=quorum(2))].removals < outcomes[Policy()].removals


ONE: workload.Timed = [
    (0, Insert("A", 2, 9)),
    (60, Adjust("A", 2, 9, 12)),
    (120, Stable(3)),
    (150, Stable(8)),
    (180, Stable(INFINITY)),
]
OTHER: workload.Timed = [(30, Insert("A", 2, 12)), (120, Stable(3)), (200, Stable(INFINITY))]


@pytest.mark.parametrize(
    ("policy", "adjusts", "stables", "first", "final", "behind"),
    [
        (Policy(), 1, 3, 0, 150, 0),
        (Policy(adjust="eager"), 1, 3, 0, 0, 0),
        (Policy(adjust="leader"), 1, 3, 0, 30, 0),
        (Policy(insert="half_frozen"), 0, 3, 120, 90, 0),
        (Policy(insert=quorum(2)), 0, 3, 30, 0, 0),
        (Policy(insert="half_frozen", stable=lag(5)), 0, 3, 150, 120, 5),
        (Policy(stable=quorum(2)), 1, 2, 0, 170, 2.5),
    ],
)
def test_what_a_policy_costs_and_brings(
    policy: Policy, adjusts: int, stables: int, first: int, final: int, behind: float
) -> None:
    """A's final version is first published at 30; two stables of ONE come before its end."""
    assert policies.outcome([ONE, OTHER], policy) == policies.Outcome(
        policy,
        inserts=1_000,
        adjusts=adjusts * 1_000,
        removals=0,
        stables=stables * 1_000,
        first=policies.Wait(first, first),
        final=policies.Wait(final, final),
        behind=behind,
    )


def test_an_output_that_is_not_the_logical_stream_is_no_outcome() -> None:
    with pytest.raises(AssertionError, match="not what the inputs present"):
        policies.outcome([ONE, [(-1, Stable(INFINITY))]], Policy())


@pytest.mark.deep
def test_policies_are_measured_and_drawn_from_the_command_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks", "policies", "--events", "200", "--json"]
    texts = []
    for seed in ("0", "1"):
        ended = subprocess.run(
            [*command, "--out", tmp_path / seed],
            cwd=Path(workload.__file__).parents[1],
            env=os.environ | {"PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
        )
        texts.append((ended.stdout, (tmp_path / seed / "policies.svg").read_text()))
    assert texts[0] == texts[1], "the same in any process"
    rows = json.loads(texts[0][0])["rows"]
    chosen = [tuple(row["policy"].values()) for row in rows]
    assert len(set(chosen)) == 36
    assert chosen[0] == ("first", "lazy", "max")
    for word in ("half_frozen", "eager", "lag(20m)", "quorum(2)", "mean wait for the final"):
        assert word in texts[0][1]


# --- the service ----------------------------------------------------------------------------------


def test_lazy_replicas_publish_the_same() -> None:
    assert [list(stream) for stream in inputs.lazily(300)] == inputs.replicas(300)
    (unclosed,) = inputs.lazily(300, 1, closed=False)
    assert [*unclosed, Stable(INFINITY)] == inputs.replicas(300, 1)[0]


def test_the_longest_gap_is_of_those_that_touch_the_span() -> None:
    arrivals = Arrivals(Connection("127.0.0.1:1"), "out")
    assert arrivals.longest_gap(1, 4) == 3, "nothing came at all"
    arrivals.times = [0.0, 5.0, 6.0, 8.0, 20.0]
    assert arrivals.longest_gap(5.5, 7) == 2
    assert arrivals.longest_gap(4, 6.5) == 5
    assert arrivals.longest_gap(8.5, 9) == 12


def test_replicas_of_a_soak_agree_also_when_one_starts_over() -> None:
    part = Part(bootstrap="", topic="", number=0, events=400, rate=100, live=50, began=0)
    expected = final_tdb(list(lives(part)))
    for number in range(3):
        again = msgspec.structs.replace(part, number=number)
        times, elements = zip(*again.stream(), strict=True)
        assert list(times) == sorted(times)
        assert reconstitute(elements) == expected
        assert times[0] >= 0
        late = msgspec.structs.replace(again, incarnation=1, joining_at=2 * SECOND)
        knows = reconstitute(element for _, element in late.stream())
        assert sorted(knows) == sorted(event for event in expected if event[2] >= 2 * SECOND)


def _samples(sizes: list[float], descriptors: list[int], every: float = 20) -> list[soak.Sample]:
    both = zip(sizes, descriptors, strict=True)
    return [soak.Sample(n * every, int(mb * 1e6), fds) for n, (mb, fds) in enumerate(both)]


def test_a_soak_judges_what_comes_after_the_warm_up() -> None:
    bounds = soak.Bounds(megabytes_a_minute=1, descriptors=2)
    flat = [20] * 16
    assert soak.grown(_samples([10, 40, 70, 90, *[100.0] * 12], flat), bounds) == []
    rising = [100.0 + 0.5 * n for n in range(16)]
    assert soak.grown(_samples(rising, flat), bounds) == ["memory grows by 1.50 MB/min, over 1"]
    assert soak.grown(_samples(rising, flat, every=1), bounds) == [], "too short to judge"
    assert soak.grown(_samples([100.0] * 16, list(range(16))), bounds) == [
        "descriptors grow from 4 to 12"
    ]
    assert soak.grown(_samples([100.0] * 16, [9, 9, 9, 9, *[20, 40] * 6]), bounds) == []
    assert soak.grown([], bounds) == ["nothing was seen of the worker"]


def test_figure_10_is_of_all_four_ways_and_the_same_runs_are_the_same_picture(
    tmp_path: Path,
) -> None:
    passed = {"UDF0": 8.0, "UDF1": 9.0, "LM": 8.0, "LM+Feedback": 2.0}
    runs = {
        name: forward.Run([(0.0, 3), (end / 2, 4), (end, 0)], expensive=5, skipped=6)
        for name, end in passed.items()
    }
    found: dict[str, float] = {}
    forward.measure(runs, lambda name, _, values: found.update({name: values[0]}))
    assert list(runs) == list(forward.WAYS)
    assert [found[f"{name}, until the end"] for name in runs] == list(passed.values())
    assert (found["LM over LM+Feedback"], found["LM+Feedback, readings left out"]) == (4, 6)
    texts = []
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        forward.draw(runs, tmp_path / folder / "fig10.svg")
        texts.append((tmp_path / folder / "fig10.svg").read_text())
    assert texts[0] == texts[1]
    assert all(f">{name}</text>" in texts[0] for name in forward.WAYS)


def test_figure_10_goes_by_the_shipped_topology() -> None:
    heeding = forward._commands(forward.WAYS["LM+Feedback"], 2_000, (1, 2))
    assert heeding["readings"][-4:] == ["--count", "2000", "--batch", "100-300"]
    assert {forward._option(heeding[each], "--feedback") for each in ("udf0", "udf1")} == {
        "forward.merged"
    }
    assert [forward._option(heeding[each], "--plan") for each in ("udf0", "udf1")] == ["1", "2"]
    without = forward._commands(forward.Way(), 9, (1, 2)).values()
    assert all("--feedback" not in each and "--name" not in each for each in without)
    whole = forward._commands(forward.Way(), 200_000, (1, 2))["readings"]
    assert forward._option(whole, "--batch") == "10000-30000", "as it ships"


def test_the_plans_of_the_topology_are_those_that_are_chosen() -> None:
    even = UnitCosts(dict.fromkeys(UNITS, 1.0), dict.fromkeys(KINDS, 100.0))
    shipped = load(Path("topologies/fast-forward.yaml"), bootstrap="127.0.0.1:1").up
    assert shipped is not None
    commands = {each.name: each.command for each in shipped.processes}
    numbers = [int(forward._option(commands[each], "--plan")) for each in ("udf0", "udf1")]
    assert forward.chosen_plans(even) == numbers


def _benchmarks(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "benchmarks", *arguments],
        cwd=Path(workload.__file__).parents[1],
        check=False,
        capture_output=True,
        text=True,
    )


OF_THE_SERVICE = {
    "merge": "ratio of each pair to the pass-through, 120 bytes",
    "revised": "merge, exactly once, 120 bytes, a fifth of the events revised",
    "payloads": "ratio of each pair to the pass-through, payloads of 200 bytes",
    "workers": "replicas co-partitioned, 2 workers: ratio to 1 worker",
    "latency": "added latency at 3 × 400 elements/s, p99",
    "recovery": "300 live: with a snapshot, to first commit",
    "history": "200 live, history × 5: with a snapshot, to first commit",
    "partitions": "16 output partitions, 1 worker: rate",
    "idle": "3 replicas × 2 partitions, 2 outputs: idle",
    "watched": "2 replicas × 2 partitions, 2 workers: the dashboard",
    "snapshots": "a snapshot every 60 s, the default: ratio to none",
    "takeover": "takeover by a standby after SIGTERM",
    "backlog": "backlog of 3 × 2,397 elements, peak resident",
    "streams": "merge to Kafka Streams when warm",
    "table": "ratio with a table to without a table",
    "beginning": "history × 5: begun at the snapshot",
    "forgetting": "keep 2 s, 3 × 1,000 elements a second: offsets kept",
}


def test_every_measurement_of_the_service_is_tried() -> None:
    assert set(OF_THE_SERVICE) == set(service.NAMES)


@pytest.mark.full
@pytest.mark.kafka
@pytest.mark.parametrize(
    "name",
    [
        name if name == "merge" else pytest.param(name, marks=pytest.mark.deep)
        for name in OF_THE_SERVICE
    ],
)
def test_the_service_is_measured_from_the_command_line(name: str) -> None:
    ended = _benchmarks("service", "--tiny", "--runs", "1", "--json", "--only", name)
    assert ended.returncode == 0, ended.stderr[-2_000:]
    found = {row["name"]: row["values"] for row in json.loads(ended.stdout)["rows"]}
    assert min(found[OF_THE_SERVICE[name]]) > 0
    assert name in ended.stderr, "how far it is"


@pytest.mark.kafka
@pytest.mark.deep
def test_a_soak_ends_with_the_audit_and_its_exit_code_shows_that_a_bound_is_exceeded() -> None:
    """So tight a bound that no worker stays within it."""
    ended = _benchmarks(
        "soak", "--minutes", "0.2", "--rate", "200", "--live", "200", "--every", "5",
        "--max-descriptors", "-1000",
    )  # fmt: skip
    assert ended.returncode == 1, ended.stderr[-2_000:]
    *_, audit, fault, verdict = ended.stdout.splitlines()
    assert audit == "audit: 2,400 events, equivalent to the logical stream"
    assert fault.startswith("the witness: descriptors grow from ")
    assert verdict == "NOT WELL"
    for word in ("killed, another started", "stopped, another started", "starts over"):
        assert word in ended.stdout


@pytest.mark.kafka
@pytest.mark.deep
def test_a_rolling_restart_ends_with_the_audit() -> None:
    ended = _benchmarks("rolling", "--minutes", "0.4", "--workers", "2", "--rate", "100", "--json")
    assert ended.returncode == 0, ended.stderr[-2_000:]
    found = {row["name"]: row["values"] for row in json.loads(ended.stdout)["rows"]}
    assert found["restarts"][0] >= 1
    assert all(value > 0 for values in found.values() for value in values)
    assert "audit: 2,400 events, equivalent to the logical stream" in ended.stderr


def test_n18_a_kill_loop_strikes_everybody_in_every_way_and_one_broker_at_a_time() -> None:
    workers = ("w1", "w2", "w3")
    drawn = [both for both, _ in zip(kill_loop.compose(1, workers, 3), range(300), strict=False)]
    again = [both for both, _ in zip(kill_loop.compose(1, workers, 3), range(300), strict=False)]
    assert drawn == again
    struck = {(fault.victim, fault.way) for both in drawn for fault in both}
    victims = (*workers, 1, 2, 3)
    assert struck == {(v, w) for v in victims for w in ("kill -9", "SIGTERM", "SIGSTOP")}
    assert {len(both) for both in drawn} == {1, 2}
    for both in drawn:
        assert len({fault.victim for fault in both}) == len(both)
        assert sum(isinstance(fault.victim, int) for fault in both) <= 1
    frozen = [f.seconds for both in drawn for f in both if f.way == "SIGSTOP"]
    assert min(frozen) < 2 < 9 < max(frozen), "shorter and longer than every session"


@pytest.mark.kafka
@pytest.mark.deep
@pytest.mark.timeout(600)
def test_n18_a_kill_loop_ends_with_the_audit() -> None:
    ended = _benchmarks("kill-loop", "--minutes", "0.5", "--workers", "2", "--tasks", "2", "--json")
    found = json.loads(ended.stdout)
    assert (ended.returncode, found["trouble"]) == (0, []), ended.stderr[-2_000:]
    assert found["struck"]
    for struck in found["struck"]:
        assert len(struck["without_leader"]) == 2
        assert 0 < max(struck["without_leader"]) <= struck["back"]
    assert "K1 is valid" in found["audit"]


@pytest.mark.kafka
@pytest.mark.deep
@pytest.mark.timeout(600)
def test_n18_a_kill_loop_fails_when_a_bound_is_exceeded() -> None:
    """So tight a bound that nothing is back in it."""
    ended = _benchmarks(
        "kill-loop", "--minutes", "0.1", "--nodes", "1", "--workers", "1", "--tasks", "1",
        "--bound", "0.01",
    )  # fmt: skip
    assert ended.returncode == 1, ended.stderr[-2_000:]
    assert ended.stdout.splitlines()[-1] == "NOT WELL"


@pytest.mark.kafka
@pytest.mark.deep
def test_reading_with_spark_is_measured_from_the_command_line() -> None:
    ended = _benchmarks("spark", "--records", "2000", "--runs", "1", "--json")
    assert ended.returncode == 0, ended.stderr[-2_000:]
    rows = json.loads(ended.stdout)["rows"]
    assert len(rows) > 10
    assert all(value > 0 for row in rows for value in row["values"])


@pytest.mark.kafka
@pytest.mark.deep
def test_a_jumpstart_is_measured_from_the_command_line() -> None:
    command = "-m benchmarks jumpstart --runs 1 --window 1 --before 2000 --json"
    done = subprocess.run(
        [sys.executable, *command.split()], capture_output=True, text=True, check=True
    )
    assert {f"joined, {way}" for way in jumpstart.WAYS.values()} == {
        row["name"].partition(", window")[0] for row in json.loads(done.stdout)["rows"]
    }


def test_a_run_of_availability_is_counted_and_drawn_the_same_each_time(tmp_path: Path) -> None:
    inputs = availability.disturbed()
    assert [name for name, each in inputs.items() if each.congested] == ["a", "b", "c"]
    assert {each.rate for each in inputs.values()} == {5_000}
    assert all(0.003 <= each.stalls <= 0.005 for each in inputs.values())
    even = [(number / 100 + 0.005, 50) for number in range(2_500)]
    flows = {name: availability.Flow(list(even)) for name in (*inputs, availability.OUTPUT)}
    flows["a"].passed = [(at, 0 if 6 <= at < 8 else count) for at, count in even]
    run = availability.Run(flows, inputs)
    found: dict[str, float] = {}
    availability.measure(run, lambda name, _, values: found.update({name: values[0]}))
    assert found["output, elements a second (5,000 are due)"] == pytest.approx(5_000)
    assert found["output, deviation of 50 ms bins"] < 1
    assert found["a while a is congested, 6-8 s"] == 0
    assert found["output while a is congested, 6-8 s"] == 5_000
    for folder in ("one", "two"):
        availability.draw(run, tmp_path / folder)
    for name in ("fig8.svg", "fig9.svg"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


@pytest.mark.kafka
@pytest.mark.deep
def test_availability_is_measured_and_drawn_from_the_command_line(tmp_path: Path) -> None:
    ended = _benchmarks("availability", "--months", "1", "--json", "--out", str(tmp_path))
    assert ended.returncode == 0, ended.stderr[-2_000:]
    found = {row["name"]: row["values"] for row in json.loads(ended.stdout)["rows"]}
    assert found["output, elements a second (5,000 are due)"][0] > 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fig8.svg", "fig9.svg"]


@pytest.mark.full
def test_all_techniques_of_replay_are_measured_on_the_same_revisions() -> None:
    query = replay.QUERIES["Q2"]
    found = {
        technique: replay.measure(query, technique, 2, 500, 2, day=3_600, seconds=1_500)
        for technique in replay.TECHNIQUES
    }
    assert len({each.emitted for each in found.values()}) == 1
    assert found["RM"].replayed < found["plan"].replayed < found["RA"].replayed
    assert found["RM"].read < found["RA"].read
    assert replay.paper("Q1", "LOW", "RA") == (4.53, 4.45)
