"""`lmerge infer`: what is printed for people and programs, of files and of topics."""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from lmerge_service.elements import INFINITY, Adjust, Element, Insert, Stable
from lmerge_service.kafka.connection import Connection
from lmerge_service.kafka.source import TopicPartition
from lmerge_service.kafka.topics import Topics
from tests.cli.conftest import Lmerge, Run
from tests.offline.streams import on_the_wire, write

A, B = Insert("A", 7, 9), Insert("B", 7, 9)
STREAMS: Mapping[str, Sequence[Element]] = {
    "strict": [Insert("A", 6, 25), Stable(7), A, Stable(INFINITY)],
    "tied": [A, B, Insert("C", 8, 9)],
    "swapped": [B, A, Insert("C", 8, 9)],
    "revised": [Insert("B", 8, 99), Insert("A", 6, 20), Adjust("A", 6, 20, 25), Stable(9)],
    "doubled": [A, B, A, Stable(INFINITY)],
    "illegal": [Insert("A", 6, 20), Stable(7), Insert("B", 6, 20)],
}


@pytest.fixture(autouse=True)
def _files(tmp_path: Path) -> None:
    for name, elements in STREAMS.items():
        write(tmp_path / name, map(on_the_wire, elements))


def test_a_stream_is_described_and_each_case_that_it_breaks_by_its_first_element(
    lmerge: Lmerge,
) -> None:
    done = lmerge("infer", "revised")
    assert (done.code, done.err) == (0, "")
    back = 'no, revised:2: vs 6 after vs 8: {"op":"insert","payload":"A","vs":6,"ve":20}'
    assert done.out.splitlines() == [
        "revised: legal; 2 inserts, 1 adjusts, 1 stables; not ended",
        (
            "  out of order: 50.0% of the inserts, by 2 at most; "
            "live at most: 2 events, 1 of one payload and vs"
        ),
        f"R0: {back}",
        f"R1: {back}",
        f"R2: {back}",
        "R3: yes",
        "R4: yes",
        "for the topology:",
        "case: R3",
    ]


@pytest.mark.parametrize(
    ("inputs", "case"),
    [
        (["strict"], "R0"),
        (["tied"], "R2"),
        (["doubled"], "R4"),
        (["tied", "tied"], "R1"),
        (["tied", "swapped"], "R2"),
        (["strict", "revised"], "R3"),
    ],
)
def test_the_last_line_is_for_the_topology(
    inputs: Sequence[str], case: str, lmerge: Lmerge
) -> None:
    assert lmerge("infer", *inputs).out.splitlines()[-1] == f"case: {case}"


def test_r1_is_found_with_several_replicas_only(lmerge: Lmerge) -> None:
    assert "R1: possible: only several replicas can show it\n" in lmerge("infer", "tied").out
    assert (
        "R1: no, swapped:1: event 1 at vs 7 is another one at tied:1: "
        '{"op":"insert","payload":"B","vs":7,"ve":9}\n'
    ) in lmerge("infer", "tied", "swapped").out


def test_what_is_not_legal_is_named_and_left_out(lmerge: Lmerge) -> None:
    done = lmerge("infer", "illegal")
    assert done.code == 0
    lines = done.out.splitlines()
    assert lines[0] == (
        "illegal: NOT legal in 1 elements; 2 inserts, 0 adjusts, 1 stables; not ended"
    )
    assert lines[2] == (
        "  first that is not legal: illegal:3: insert with vs=6 below the stream's own "
        'stable(7): {"op":"insert","payload":"B","vs":6,"ve":20}'
    )
    assert lines[-3:] == [
        "note: elements that are not legal were left out; a merge reports them as breaches",
        "for the topology:",
        "case: R0",
    ]


def test_json_is_the_same_for_programs(lmerge: Lmerge) -> None:
    done = lmerge("infer", "tied", "illegal", "--json")
    assert (done.code, done.err, done.out.count("\n")) == (0, "", 1)
    document = json.loads(done.out)
    streams = document.pop("streams")
    assert [each["name"] for each in streams] == ["tied", "illegal"]
    assert streams[1] == {
        "name": "illegal",
        "complete": False,
        "inserts": 2,
        "adjusts": 0,
        "stables": 1,
        "illegal": 1,
        "first_illegal": {
            "where": "illegal:3",
            "why": "insert with vs=6 below the stream's own stable(7)",
            "element": {"op": "insert", "payload": "B", "vs": 6, "ve": 20},
        },
        "fraction_disordered": 0.0,
        "max_disorder": 0,
        "max_live": 1,
        "max_multiplicity": 1,
        "partitions": 1,
        "restarts": 0,
    }
    cases = document.pop("cases")
    assert cases["R0"] == {
        "obeys": False,
        "first_break": {
            "where": "tied:2",
            "why": "vs 7 twice",
            "element": {"op": "insert", "payload": "B", "vs": 7, "ve": 9},
        },
        "unknown": None,
    }
    assert cases["R2"] == {"obeys": True, "first_break": None, "unknown": None}
    assert document == {
        "case": "R2",
        "legal": False,
        "notes": [
            "`lmerge audit` checks whether these are replicas of one query",
            "elements that are not legal were left out; a merge reports them as breaches",
        ],
    }


def test_standard_input_is_a_stream_too(run: Run) -> None:
    done = run(pipeline="lmerge infer - tied < swapped")
    assert (done.returncode, done.stderr) == (0, "")
    assert "R1: no, tied:1: event 1 at vs 7 is another one at <stdin>:1" in done.stdout


def test_strings_that_differ_in_unicode_form_only_are_one_payload_with_nfc(
    tmp_path: Path, lmerge: Lmerge
) -> None:
    lines = [
        json.dumps({"op": "insert", "payload": text, "vs": 1, "ve": 2})
        for text in ("caf\u00e9", "cafe\u0301")
    ]
    (tmp_path / "both").write_text("\n".join(lines) + "\n")
    assert "R3: yes" in lmerge("infer", "both").out
    assert "R3: no, both:2: second insert of the payload" in lmerge("infer", "both", "--nfc").out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["absent"], "cannot read absent: No such file or directory"),
        (["tied", "csv"], "csv:1: not JSON: "),
        (["-", "-"], "standard input can be read only once"),
        (["kafka:no/topic"], "'no/topic' is no name of a topic"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(
    arguments: Sequence[str], message: str, lmerge: Lmerge
) -> None:
    Path("csv").write_text("a,b\n1,2\n")
    done = lmerge("infer", *arguments)
    assert (done.code, done.out) == (2, "")
    assert done.error.startswith(message)


def test_kafka_that_is_not_there_is_exit_3(lmerge: Lmerge) -> None:
    done = lmerge("infer", "tied", "kafka:t", "--bootstrap", "127.0.0.1:1")
    assert (done.code, done.out) == (3, "")
    assert "127.0.0.1:1" in done.error


@pytest.mark.full
def test_topics_are_streams_by_partition(
    lmerge: Lmerge, bootstrap: str, topic_name: Callable[..., str]
) -> None:
    at = ("--bootstrap", bootstrap)
    one, two, wide = topic_name("one"), topic_name("two"), topic_name("wide")
    absent = topic_name("absent")
    many: list[Element] = [*(Insert(f"{n}", n // 2, n + 9) for n in range(50)), Stable(INFINITY)]
    write(Path("many"), map(on_the_wire, many))
    for topic, partitions in ((one, "1"), (two, "1"), (wide, "2")):
        published = lmerge("publish", "many", topic, "--partitions", partitions, *at)
        assert published.code == 0
    same = lmerge("infer", f"kafka:{one}", "many", f"kafka:{two}", *at)
    assert (same.code, same.err) == (0, "")
    assert f'R0: no, {one}[0]@1: vs 0 twice: {{"op":"insert","payload":"1"' in same.out
    assert same.out.splitlines()[-1] == "case: R1"
    spread = lmerge("infer", f"kafka:{wide}", *at)
    assert "holds events beside partition" in spread.out
    assert f"note: kafka:{wide} keeps order within a partition only: R3 at best" in spread.out
    assert spread.out.splitlines()[-1] == "case: R3"
    missing = lmerge("infer", f"kafka:{absent}", *at)
    assert (missing.code, missing.out) == (2, "")
    assert missing.error == f"kafka:{absent}: there is no such topic at {bootstrap}"


@pytest.mark.full
def test_a_topic_that_has_lost_its_beginning_is_judged_by_what_is_left(
    lmerge: Lmerge, bootstrap: str, topic_name: Callable[..., str]
) -> None:
    cut = topic_name("cut")
    stream: list[Element] = [
        Insert("A", 1, 9), Insert("B", 2, 9), Adjust("A", 1, 9, 12), Stable(3),
    ]  # fmt: skip
    write(Path("stream"), map(on_the_wire, stream))
    assert lmerge("publish", "stream", cut, "--bootstrap", bootstrap).code == 0

    async def trim() -> None:
        async with Topics(Connection(bootstrap)) as topics:
            await topics.trim({TopicPartition(cut, 0): 1})

    asyncio.run(trim())
    done = lmerge("infer", f"kafka:{cut}", "--bootstrap", bootstrap)
    assert (done.code, done.err) == (0, "")
    assert f"kafka:{cut}: legal; 1 inserts, 1 adjusts, 1 stables; not ended" in done.out
    assert f"note: kafka:{cut} begins at offset 1 of partition 0: adjusts of events" in done.out
    assert done.out.splitlines()[-1] == "case: R3"
