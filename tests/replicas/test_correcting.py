"""`lmerge query correct`: an incarnation of a replica with facts that were wrong corrected."""

import json
import random
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from lmerge_service.elements import Insert
from lmerge_service.errors import ConfigurationError, StateError
from lmerge_service.formats.wire import WireDecoder
from lmerge_service.merge.decisions.records import Attach, Detach
from lmerge_service.queries import logical
from lmerge_service.queries.expressions import col
from lmerge_service.queries.loading import load
from lmerge_service.queries.plan import Query, elements, facts, hopping, sum_
from lmerge_service.replicas.commit_record import Correction
from lmerge_service.replicas.correcting import correct_from
from lmerge_service.replicas.corrections import CorrectedFacts, read_corrections, written
from lmerge_service.tdb import TDB, differences, reconstitute
from tests.cli.conftest import LMERGE, environment
from tests.replicas.records import Read, facts_of
from tests.replicas.running import (
    QUERIES,
    Fact,
    Running,
    calls,
    last_commit,
    meant,
    send_facts,
    tdb_of,
)
from tests.replicas.test_restarting import delete_up_to
from tests.service.cluster import Merge, decided

TopicName = Callable[..., str]

FLIGHTS = facts("flights", time="time", fields={"origin": str, "delay": int})
SOURCES = logical.sources(FLIGHTS.plan)

WRONG = calls(random.Random("correct"), 400)
AT = 150
"""The fact that is wrong."""
RIGHT: list[Fact] = [
    {**fact, "kind": "call", "n": 3, "at": "A"} if number == AT else fact
    for number, fact in enumerate(WRONG)
]
WRONG[AT] = {**RIGHT[AT], "n": 500}


# What is asked for, and what inputs do with it


def lines(*asked: Mapping[str, Any]) -> list[bytes]:
    return [json.dumps(each).encode() for each in asked]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"{", "corrections:1: not a correction: "),
        (b"{}", "corrections:1: give what the fact `was`, what it `is`, or both"),
        (b'{"where": 1}', "corrections:1: not a correction: Object contains unknown field `where`"),
        (b'{"was": {"origin": "JFK"}}', r"corrections:1: was: time: None \(not_a_fact\)"),
        (
            b'{"was": {"time": 7, "orgin": "JFK"}}',
            "corrections:1: was: flights has no column 'orgin'; there is origin, delay",
        ),
        (
            b'{"was": {"time": 7}, "is": {"dely": 5}}',
            "corrections:1: is: flights has no column 'dely'; there is origin, delay",
        ),
        (
            b'{"source": "fights", "is": {"time": 7}}',
            "corrections:1: the query reads flights, not fights",
        ),
        (b"", "corrections has no corrections"),
    ],
)
def test_what_is_no_correction_is_refused(line: bytes, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        read_corrections([line], SOURCES)


def test_what_is_corrected_is_a_fact() -> None:
    (asked,) = read_corrections(lines({"is": {"time": 7, "delay": "late"}}), SOURCES)
    with pytest.raises(ConfigurationError, match=r"is: delay: 'late' \(wrong_type\)"):
        asked.revision(None)
    merged = elements("merged", {"n": int})
    with pytest.raises(ConfigurationError, match="correct the query that publishes them"):
        read_corrections(lines({"is": {"n": 1}}), logical.sources(merged.plan))
    both = FLIGHTS.join(merged.rename(delay="n"), "delay")
    with pytest.raises(ConfigurationError, match='name the "source": there is flights, merged'):
        read_corrections(lines({"is": {"time": 1}}), logical.sources(both.plan))


def corrected(*corrections: Correction) -> CorrectedFacts:
    source = SOURCES["flights"]
    assert isinstance(source, logical.Source)
    return CorrectedFacts(source, "flights", 2, 1, corrections)


def records(*given: tuple[int, str, int]) -> Sequence[Read]:
    return facts_of(*({"time": time, "origin": o, "delay": d} for time, o, d in given))


def event(time: int, origin: str, delay: int) -> tuple[tuple[str, int], int, int]:
    return (origin, delay), time, time + 1


def test_an_input_corrects_each_fact_once() -> None:
    given = records((7, "JFK", 20), (7, "JFK", 20), (8, "EWR", 5), (9, "LGA", 1))
    made = [
        Correction("flights", event(7, "JFK", 20), event(7, "JFK", 2)),
        Correction("flights", event(8, "EWR", 5), None),
        Correction("flights", None, event(3, "LGA", 4)),
        Correction("flights", event(3, "LGA", 4), event(3, "LGA", 40)),  # a correction of that
    ]
    wanted = [
        Insert(*event(3, "LGA", 40)),
        Insert(*event(7, "JFK", 2)),
        Insert(*event(7, "JFK", 20)),
        Insert(*event(9, "LGA", 1)),
    ]
    whole = corrected(*made)
    assert whole.take(0, given) == wanted
    assert whole.take(1, given[:1]) == [Insert(*event(7, "JFK", 20))], "all have been applied"
    begun = corrected(*made)
    first = begun.take(0, given[:1])
    again = corrected(*made)
    again.restore(begun.saved())
    again.go_on(begun.reached)
    assert [*first, *again.take(0, given[1:])] == wanted
    with pytest.raises(StateError, match="snapshot of the input 'flights' is damaged"):
        again.restore(b"\x00")


def test_from_when_on_output_is_computed_anew() -> None:
    (asked,) = read_corrections(lines({"is": {"time": 70, "origin": "JFK"}}), SOURCES)
    made = [written(asked.revision(None))]
    hourly = FLIGHTS.windows(hopping(60, every=20)).by("origin").aggregate(n=sum_("delay"))
    assert correct_from(hourly.plan, made) == 70
    assert correct_from(FLIGHTS.shift(-5).shift(3).plan, made) == 65
    assert correct_from(FLIGHTS.hop(10, 4).plan, made) == 60
    each = FLIGHTS.by("origin").apply(lambda group: group.shift(-7).where(col.delay > 1))
    assert correct_from(each.plan, made) == 63


# Over Kafka


def query() -> Query:
    return load(f"{QUERIES}:windows")


def run_correct(
    bootstrap: str,
    folder: Path,
    to: str,
    topic: str,
    *asked: Mapping[str, Any],
    options: Sequence[str] = (),
) -> tuple[int, Any, str]:
    """Exit code, what is printed as JSON, and the error of the command."""
    file = folder / "corrections.jsonl"
    file.write_bytes(b"\n".join(lines(*asked)))
    command = [
        *(*LMERGE, "query", "correct", f"{QUERIES}:windows", str(file), "--to", to, "--json"),
        *("--topic", f"calls={topic}", "--bootstrap", bootstrap, *options),
    ]
    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, check=False, timeout=60
    )
    return done.returncode, json.loads(done.stdout) if done.stdout else None, done.stderr


def read_table(merge: Merge, since: int) -> TDB:
    """What `lmerge read` prints of the output as it goes on, of what ends at a time or later."""
    command = [*LMERGE, "read", f"kafka:{merge.output}", "--from", "snapshot"]
    done = subprocess.run(
        [*command, "--bootstrap", merge.bootstrap],
        env=environment(),
        capture_output=True,
        check=True,
        timeout=60,
    )
    decoder = WireDecoder()
    found = reconstitute(decoder.decode(line) for line in done.stdout.splitlines())
    return TDB(each for each in found if each.ve >= since)


REPLACED = {
    "was": {"time": RIGHT[AT]["time"], "id": AT, "n": 500},
    "is": {"n": 3},
}


@pytest.mark.full
def test_a_reader_of_the_merge_gets_the_table_as_corrected(
    bootstrap: str, topic_name: TopicName, tmp_path: Path
) -> None:
    """Two replicas, both of facts of which one is wrong, and final in both and in their merge. One
    is corrected, in a topic of its own, and killed while it begins; it takes the place of both, and
    the output starts over from the time of the correction on."""
    merge, facts_topic = Merge(bootstrap, tmp_path, ("a", "b")), topic_name("calls")
    merge.topics = {"a": topic_name("a"), "b": topic_name("b")}
    merge.write()
    since = RIGHT[AT]["time"]
    whole, wrong = meant(query(), {"calls": RIGHT}), meant(query(), {"calls": WRONG})
    send_facts(bootstrap, facts_topic, WRONG, partitions=2)
    for plan, to in enumerate(merge.topics.values(), 1):
        with Running(bootstrap, "windows", to, "--plan", str(plan), calls=facts_topic) as replica:
            assert replica.wait() == 0, replica.error
    with merge.worker() as worker:
        worker.wait_until_ended()
        assert merge.output_is(wrong)
        into = topic_name("right")
        options = ("--into", into)
        for made in (1, 0):  # made again, nothing changes
            code, report, error = run_correct(
                bootstrap, tmp_path, merge.topics["a"], facts_topic, REPLACED, options=options
            )
            assert (code, report and report["corrections"]) == (0, made), error
        assert (report["topic"], report["joining_at"]) == (into, since)
        with Running(bootstrap, "windows", into, calls=facts_topic) as replica:
            replica.await_line("goes on")
            replica.kill()
        with Running(bootstrap, "windows", into, calls=facts_topic) as replica:
            assert replica.wait() == 0, replica.error
        decided(merge, Attach({"name": "right", "topic": into}), Detach("a"), Detach("b"))
        worker.wait(
            lambda s: [each["name"] for each in s["replicas"]] == ["right"], "a and b to be gone"
        )
        assert merge.output_is(wrong), "what is final stays"
        worker.kill()
    correct = TDB(each for each in whole if each.ve >= since)
    found = tdb_of(bootstrap, into)
    assert not differences(TDB(each for each in found if each.ve >= since), correct)
    assert differences(TDB(each for each in wrong if each.ve >= since), correct)
    restart = [*LMERGE, "restart-output", str(merge.path), "--force", "--yes"]
    subprocess.run(
        [*restart, "--correct-from", f"right={since}"],
        env=environment(),
        check=True,
        capture_output=True,
        timeout=60,
    )
    with merge.worker() as worker:
        worker.wait(
            lambda s: s["output"]["ended"] and s["output"]["incarnation"] == 1,
            "the output to start over and to end",
            60,
        )
    assert not differences(read_table(merge, since), correct)


@pytest.mark.full
def test_a_replica_that_runs_is_fenced_and_goes_on_with_all_corrections(
    bootstrap: str, topic_name: TopicName, tmp_path: Path
) -> None:
    """A second correction corrects the first, one is repeated, and a snapshot has them."""
    facts_topic, to = topic_name("calls"), topic_name("windows")
    send_facts(bootstrap, facts_topic, WRONG[:300], ended=False)
    options = ("--snapshot-seconds", "0.2", "--batch", "50")

    def running(*more: str) -> Running:
        return Running(bootstrap, "windows", to, *options, *more, calls=facts_topic)

    late = {"id": 9_000, "kind": "call", "at": "B", "n": 4, "time": WRONG[100]["time"]}
    asked = ({**REPLACED, "is": {"n": 4}}, {"was": {**WRONG[200]}}, {"is": late})
    with running() as replica:
        replica.await_line("begins with all facts")
        while (commit := last_commit(bootstrap, to)) is None or not commit.snapshots:
            pass
        code, report, error = run_correct(bootstrap, tmp_path, to, facts_topic, *asked)
        assert code == 0, error
        assert (report["corrections"], report["joining_at"]) == (3, late["time"])
        send_facts(bootstrap, facts_topic, WRONG[300:310], ended=False)
        assert replica.wait() == 5, replica.error  # with its next commit
    code, report, _ = run_correct(bootstrap, tmp_path, to, facts_topic, *asked)
    assert (code, report["corrections"], report["incarnation"]) == (0, 0, 1)
    with running() as replica:
        replica.await_line("goes on")
        while (commit := last_commit(bootstrap, to)) is None or not commit.snapshots:
            pass
        replica.kill()
    again = {"was": {**REPLACED["was"], "n": 4}, "is": {"n": 3}}
    code, report, error = run_correct(bootstrap, tmp_path, to, facts_topic, again)
    assert (code, report and report["incarnation"]) == (0, 2), error
    send_facts(bootstrap, facts_topic, WRONG[310:])
    with running("--plan", "2") as replica:  # nothing is published yet, so any plan may go on
        replica.await_line("goes on")
        assert replica.wait() == 0, replica.error
    true = [*RIGHT[:200], *RIGHT[201:], late]
    since = RIGHT[AT]["time"]
    found = TDB(e for e in tdb_of(bootstrap, to, incarnation=2) if e.ve >= since)
    wanted = TDB(e for e in meant(query(), {"calls": true}) if e.ve >= since)
    assert not differences(found, wanted)


@pytest.mark.full
def test_what_cannot_be_corrected_is_refused_and_disturbs_nobody(
    bootstrap: str, topic_name: TopicName, tmp_path: Path
) -> None:
    facts_topic, to = topic_name("calls"), topic_name("windows")
    send_facts(bootstrap, facts_topic, WRONG)

    def refused(*asked: Mapping[str, Any]) -> tuple[int, str]:
        code, _, error = run_correct(bootstrap, tmp_path, to, facts_topic, *asked)
        return code, error

    code, error = refused(REPLACED)
    assert (code, f"there is no topic {to}" in error) == (2, True)
    with Running(bootstrap, "windows", to, calls=facts_topic) as replica:
        assert replica.wait() == 0, replica.error
    before = last_commit(bootstrap, to)
    time = RIGHT[AT]["time"]
    code, error = refused({"was": {"time": time, "n": 77}})
    assert (code, f"has no such fact of time {time} that counts" in error) == (2, True)
    busy = next(f["time"] for f in WRONG if sum(g["time"] == f["time"] for g in WRONG) > 1)
    code, error = refused({"was": {"time": busy}})
    assert (code, "different facts are meant by that" in error) == (2, True)
    delete_up_to(bootstrap, facts_topic, AT)
    code, error = refused(REPLACED)
    assert (code, "a revision reaches behind the archive" in error) == (4, True)
    assert last_commit(bootstrap, to) == before
