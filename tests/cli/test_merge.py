"""`lmerge merge`: output, report, warnings, and what is left after a mistake."""

import json
from pathlib import Path

import pytest

from lmerge_service.core.engine import ENGINE_VERSION
from lmerge_service.elements import INFINITY, Adjust, Element, Insert, Stable
from lmerge_service.formats.wire import WireDecoder
from lmerge_service.tdb import reconstitute
from tests.cli.conftest import Lmerge
from tests.engines import ENGINES
from tests.offline.streams import on_the_wire, read, write

A: list[Element] = [Insert("A", 6, 20), Stable(7), Adjust("A", 6, 20, 25), Stable(INFINITY)]
B: list[Element] = [Insert("A", 6, 25), Insert("B", 8, 9), Adjust("B", 8, 9, 8), Stable(INFINITY)]


@pytest.fixture(autouse=True, params=ENGINES)
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What merges."""
    monkeypatch.setenv("LMERGE_ENGINE", request.param)
    return str(request.param)


@pytest.fixture(autouse=True)
def _files(tmp_path: Path) -> None:
    for name, elements in (("a", A), ("b", B)):
        write(tmp_path / f"{name}.ndjson", map(on_the_wire, elements))


def test_files_become_one_that_means_the_same(lmerge: Lmerge) -> None:
    done = lmerge("merge", "a.ndjson", "b.ndjson", "-o", "out.ndjson")
    assert (done.code, done.out, done.err) == (0, "", "")
    expected: list[Element] = [
        Insert("A", 6, 20),
        Stable(7),
        Insert("B", 8, 9),
        Adjust("A", 6, 20, 25),
        Adjust("B", 8, 9, 8),
        Stable(INFINITY),
    ]
    assert read("out.ndjson") == list(map(on_the_wire, expected))


@pytest.mark.parametrize("order", ["round-robin", "sequential", "random:3"])
def test_every_interleaving_gives_an_equivalent_output_and_the_same_one_again(
    order: str, lmerge: Lmerge
) -> None:
    outputs = [
        lmerge("merge", "a.ndjson", "b.ndjson", "-o", "-", "--interleave", order).out
        for _ in range(2)
    ]
    assert outputs[0] == outputs[1]
    Path("out.ndjson").write_text(outputs[0])
    assert reconstitute(read("out.ndjson")) == reconstitute(read("a.ndjson"))


@pytest.mark.parametrize(
    ("order", "decoded"), [("round-robin", 4), ("random:1", 4), ("sequential", 6)]
)
def test_what_one_file_has_just_contained_is_not_decoded_again_for_another(
    order: str, decoded: int, lmerge: Lmerge, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stables are. One after the other the files are further apart than what is kept of one."""
    if engine == "native":
        pytest.skip("it decodes each line")
    elements: list[Element] = [Insert("A", 6, 20), Insert("B", 7, 9), Stable(7)]
    write(Path("c.ndjson"), map(on_the_wire, elements))
    decode, seen = WireDecoder.decode, []

    def counted(decoder: WireDecoder, record: bytes) -> Element:
        seen.append(record)
        return decode(decoder, record)

    monkeypatch.setattr(WireDecoder, "decode", counted)
    done = lmerge("merge", "c.ndjson", "c.ndjson", "-o", "out.ndjson", "--interleave", order)
    assert (done.code, done.err) == (0, "")
    assert len(seen) == decoded
    assert read("out.ndjson") == list(map(on_the_wire, elements))


def test_stats_are_a_table_on_standard_error(lmerge: Lmerge, engine: str) -> None:
    done = lmerge("merge", "a.ndjson", "a.ndjson", "-o", "-", "--stats")
    assert done.code == 0
    assert all(line.startswith('{"op":') for line in done.out.splitlines())
    rows = [line.split() for line in done.err.splitlines() if line.startswith("│")]
    assert rows == [
        ["│", "a.ndjson", "│", "1", "│", "1", "│", "2", "│", "1", "│", "0", "│", "0", "│"],
        ["│", "a.ndjson", "(2)", "│", "1", "│", "1", "│", "2", "│", "0", "│", "0", "│", "0", "│"],
        ["│", "output", "│", "1", "│", "1", "│", "2", "│", "│", "│", "│"],
    ]
    rate, by = done.err.splitlines()[-2:]
    assert rate.startswith("the output is complete; 8 elements in ")
    assert by.startswith(f"engine: {engine}, as ")


def test_stats_show_that_the_output_has_not_ended(lmerge: Lmerge) -> None:
    write(Path("open.ndjson"), [Stable(7)])
    done = lmerge("merge", "open.ndjson", "-o", "out.ndjson", "--stats")
    assert "the output is not ended, stable at 7; 1 elements in " in done.err


def test_long_names_are_shown_whole(lmerge: Lmerge) -> None:
    name = f"{'long' * 30}.ndjson"
    write(Path(name), [Stable(7)])
    done = lmerge("merge", name, "-o", "out.ndjson", "--stats")
    first_column = [line.split("│")[1] for line in done.err.splitlines() if line.startswith("│")]
    assert "".join(first_column).replace(" ", "") == f"{name}output"
    assert max(map(len, done.err.splitlines())) <= 80


def test_json_has_all_on_one_line(lmerge: Lmerge, engine: str) -> None:
    done = lmerge("merge", "a.ndjson", "b.ndjson", "-o", "out.ndjson", "--json")
    assert (done.code, done.err, done.out.count("\n")) == (0, "", 1)
    document = json.loads(done.out)
    assert isinstance(document.pop("seconds"), float)
    by = document.pop("engine")
    assert (by["name"], by["unusual"]) == (engine, 0)
    assert by["why"] in ("it was asked for", f"lmerge-engine {ENGINE_VERSION} is installed")
    assert document == {
        "case": "R3",
        "elements": 8,
        "inputs": [
            {
                "name": "a.ndjson",
                "inserts": 1,
                "adjusts": 1,
                "stables": 2,
                "delivered_first": 1,
                "late": 0,
                "breaches": {},
            },
            {
                "name": "b.ndjson",
                "inserts": 2,
                "adjusts": 1,
                "stables": 1,
                "delivered_first": 1,
                "late": 0,
                "breaches": {},
            },
        ],
        "output": {
            "inserts": 2,
            "adjusts": 2,
            "removals": 1,
            "stables": 2,
            "stable": None,
            "complete": True,
            "leader_switches": 0,
            "live_events": 0,
        },
        "breaches": 0,
        "first_breaches": [],
    }


def test_json_goes_to_standard_error_when_standard_output_is_the_stream(lmerge: Lmerge) -> None:
    done = lmerge("merge", "a.ndjson", "b.ndjson", "-o", "-", "--json")
    assert all(line.startswith('{"op":') for line in done.out.splitlines())
    assert json.loads(done.err)["output"]["complete"]


# Breaches

BREACHES = {
    "duplicate_key": "inserts an event that this input holds already (duplicate_key)",
    "half_frozen_missing": "passes an event that this input does not have (half_frozen_missing)",
    "stable_regression": "ignored, it is below the last stable of this input (stable_regression)",
}


def lying(tmp_path: Path) -> None:
    elements: list[Element] = [
        Insert("B", 8, INFINITY),
        Insert("B", 8, 9),
        Stable(15),
        Stable(12),
    ]
    write(tmp_path / "lies.ndjson", map(on_the_wire, elements))
    write(tmp_path / "truth.ndjson", [on_the_wire(Insert("A", 6, 20)), Stable(7)])


def test_breaches_are_warnings_with_file_and_line_and_the_merge_goes_on(
    lmerge: Lmerge, tmp_path: Path
) -> None:
    lying(tmp_path)
    done = lmerge("merge", "truth.ndjson", "lies.ndjson", "-o", "out.ndjson")
    assert (done.code, done.out) == (0, "")
    duplicate = '{"op":"insert","payload":"B","vs":8,"ve":9}; kept: "B" [8, infinity)'
    missing = '{"op":"stable","vc":15}; kept: "A" [6, 20)'
    regression = '{"op":"stable","vc":12}'
    first, second, third = done.err.splitlines()
    assert first == f"warning: lies.ndjson:2: {BREACHES['duplicate_key']}: {duplicate}"
    assert second == f"warning: lies.ndjson:3: {BREACHES['half_frozen_missing']}: {missing}"
    assert third == f"warning: lies.ndjson:4: {BREACHES['stable_regression']}: {regression}"
    reconstitute(read("out.ndjson"))


def test_json_has_the_breaches_instead_of_warnings(lmerge: Lmerge, tmp_path: Path) -> None:
    lying(tmp_path)
    document = json.loads(lmerge("merge", "truth.ndjson", "lies.ndjson", "-o", "o", "--json").out)
    assert document["breaches"] == 3
    assert document["first_breaches"][1] == {
        "where": "lies.ndjson:3",
        "kind": "half_frozen_missing",
        "element": {"op": "stable", "vc": 15},
        "kept": {"payload": "A", "vs": 6, "ve": 20},
    }


def test_many_breaches_are_ten_lines_and_a_sum(lmerge: Lmerge) -> None:
    write(Path("twice.ndjson"), [*[Insert(b'"A"', 1, 2)] * 1235, Stable(5), Stable(4)])
    warnings = lmerge("merge", "twice.ndjson", "-o", "out.ndjson").err.splitlines()
    assert len(warnings) == 11
    assert warnings[9].startswith("warning: twice.ndjson:11: ")
    assert warnings[10] == (
        "warning: 1,235 breaches in all: duplicate_key 1,234, stable_regression 1"
    )


def test_a_huge_payload_does_not_flood_the_warning(lmerge: Lmerge) -> None:
    write(Path("huge.ndjson"), [Insert(b'"%b"' % (b"x" * 500_000), 1, 2)] * 2)
    done = lmerge("merge", "huge.ndjson", "-o", "out.ndjson")
    assert len(done.err) < 600
    assert done.err.endswith("xxx... [1, 2)\n")


# Policies


@pytest.mark.parametrize(
    ("options", "emitted"),
    [
        ("", [Insert(b'"X"', 5, 9), Adjust(b'"X"', 5, 9, 5), Stable(6)]),
        ("--insert half_frozen", [Stable(6)]),
        ("--insert quorum(2)", [Stable(6)]),
        ("--adjust eager", [Insert(b'"X"', 5, 9), Adjust(b'"X"', 5, 9, 5), Stable(6)]),
        ("--stable lag(1)", [Insert(b'"X"', 5, 9), Stable(5)]),
        ("--case R4 --stable quorum(2)", [Insert(b'"X"', 5, 9)]),
    ],
)
def test_a_policy_controls_when_elements_are_emitted(
    options: str, emitted: list[Element], lmerge: Lmerge
) -> None:
    write(Path("phantom.ndjson"), [Insert(b'"X"', 5, 9), Adjust(b'"X"', 5, 9, 5)])
    write(Path("nothing.ndjson"), [Stable(6)])
    order = ["--interleave", "sequential", *options.split()]
    assert lmerge("merge", "phantom.ndjson", "nothing.ndjson", "-o", "out.ndjson", *order).code == 0
    assert read(Path("out.ndjson")) == emitted


def test_a_quorum_that_is_never_reached_is_one_line(lmerge: Lmerge) -> None:
    done = lmerge("merge", "a.ndjson", "-o", "out.ndjson", "--stable", "quorum(2)")
    assert (done.code, done.error) == (2, "stable=quorum(2) of 1 inputs is never reached")


def test_a_policy_that_does_not_exist_is_one_line(lmerge: Lmerge) -> None:
    done = lmerge("merge", "a.ndjson", "-o", "out.ndjson", "--insert", "last")
    assert (done.code, done.error) == (
        2,
        "--insert must be one of first, leader, half_frozen, quorum(n), got 'last'",
    )


# Mistakes


@pytest.mark.parametrize("target", ["out.ndjson", "new.ndjson"])
def test_after_a_mistake_the_output_is_what_it_was(target: str, lmerge: Lmerge) -> None:
    Path("out.ndjson").write_text("before")
    with Path("b.ndjson").open("a") as file:
        file.write('{"op":"stable"}\n')
    before = {path.name for path in Path().iterdir()}
    done = lmerge("merge", "a.ndjson", "b.ndjson", "-o", target)
    assert done.code == 2
    assert done.error.startswith("b.ndjson:5: ")
    assert {path.name for path in Path().iterdir()} == before
    assert Path("out.ndjson").read_text() == "before"


def test_empty_files_make_an_empty_file(lmerge: Lmerge) -> None:
    Path("empty.ndjson").touch()
    assert lmerge("merge", "empty.ndjson", "empty.ndjson", "-o", "out.ndjson").code == 0
    assert Path("out.ndjson").read_bytes() == b""
