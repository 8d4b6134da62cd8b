"""`lmerge present`: seeded, legal, equivalent, physically different; and the round trip."""

from pathlib import Path

import pytest

from lmerge_service.elements import INFINITY, Adjust, Element, Insert, Stable
from lmerge_service.tdb import TDB, reconstitute
from tests.cli.conftest import Lmerge
from tests.offline.streams import on_the_wire, read, write

LOGICAL: list[Element] = [Insert(f"{n % 7}", 10 * n, 10 * n + 5 + n % 40) for n in range(150)]


@pytest.fixture(autouse=True)
def _file(tmp_path: Path) -> None:
    write(tmp_path / "logical.ndjson", map(on_the_wire, LOGICAL))


def meaning(path: str) -> TDB:
    return reconstitute(read(path))


def test_presentations_are_different_files_that_mean_the_logical_stream(lmerge: Lmerge) -> None:
    done = lmerge("present", "logical.ndjson", "-n", "3", "-o", "out")
    assert (done.code, done.out) == (0, "")
    assert done.err.splitlines()[0].startswith("out/0.ndjson: 150 inserts, ")
    assert len({Path(f"out/{n}.ndjson").read_bytes() for n in range(3)}) == 3
    for n in range(3):
        assert meaning(f"out/{n}.ndjson") == meaning("logical.ndjson")
        assert read(f"out/{n}.ndjson")[-1] == Stable(INFINITY)


def test_equal_arguments_give_equal_files_and_another_seed_others(lmerge: Lmerge) -> None:
    for folder, seed in (("one", "1"), ("again", "1"), ("other", "2")):
        lmerge("present", "logical.ndjson", "-o", folder, "--seed", seed, "--phantoms", "0.3")
    one, again, other = (Path(f, "0.ndjson").read_bytes() for f in ("one", "again", "other"))
    assert one == again != other


@pytest.mark.parametrize("seed", ["1", "2", "3"])
def test_what_is_presented_and_merged_is_audited_as_equivalent(seed: str, lmerge: Lmerge) -> None:
    options = "--provisional 0.5 --revisions 3 --reinserted 0.1 --phantoms 0.2 --stable-every 5"
    lmerge("present", "logical.ndjson", "-n", "3", "-o", ".", "--seed", seed, *options.split())
    for order in ("round-robin", "sequential", f"random:{seed}"):
        files = [f"{n}.ndjson" for n in range(3)]
        merged = lmerge("merge", *files, "-o", "merged", "--interleave", order)
        assert (merged.code, merged.err) == (0, "")
        audited = lmerge("audit", "merged", "logical.ndjson")
        assert (audited.code, audited.out.splitlines()[2]) == (0, "equivalent")


@pytest.mark.parametrize(
    "lie", ["drop=0.2", "repeat=0.2", "shift=0.2", "early=0.5", "wrong_vold=0.5", "unknown=0.2",
            "regress=0.5"],
)  # fmt: skip
def test_lies_make_warnings_or_another_meaning_and_never_an_illegal_output(
    lie: str, lmerge: Lmerge
) -> None:
    usual = ["--provisional", "0.5", "--stable-every", "5"]
    lmerge("present", "logical.ndjson", "-o", "truth", *usual)
    lmerge("present", "logical.ndjson", "-o", "lies", "--lie", lie, "--seed", "2", *usual)
    assert read("lies/0.ndjson") != read("truth/0.ndjson")
    done = lmerge("merge", "truth/0.ndjson", "lies/0.ndjson", "-o", "merged")
    assert done.code == 0
    if lie.split("=")[0] in ("repeat", "wrong_vold", "unknown", "regress"):
        assert "warning: lies/0.ndjson:" in done.err
    audited = lmerge("audit", "merged", "merged")
    assert (audited.code, audited.out.splitlines()[2]) == (0, "equivalent")


def test_presets_give_their_names_in_turn(lmerge: Lmerge) -> None:
    done = lmerge("present", "logical.ndjson", "-n", "4", "--preset", "a, C", "-o", "out")
    assert done.code == 0
    assert sorted(path.name for path in Path("out").iterdir()) == [
        "a.ndjson", "a1.ndjson", "c.ndjson", "c1.ndjson",
    ]  # fmt: skip


def test_the_logical_stream_is_written_on_demand(lmerge: Lmerge) -> None:
    lmerge("present", "logical.ndjson", "--logical", "-o", "out")
    assert read("out/logical.ndjson") == [*map(on_the_wire, LOGICAL), Stable(INFINITY)]


def test_one_presentation_may_go_to_standard_output(lmerge: Lmerge) -> None:
    done = lmerge("present", "logical.ndjson", "-o", "-")
    assert (done.code, done.err.startswith("stdout: 150 inserts, ")) == (0, True)
    Path("out").write_text(done.out)
    assert meaning("out") == meaning("logical.ndjson")


def test_a_restart_publishes_the_beginning_twice(lmerge: Lmerge) -> None:
    lmerge("present", "logical.ndjson", "-o", "plain")
    lmerge("present", "logical.ndjson", "-o", "restarted", "--restart-at", "40")
    plain = read("plain/0.ndjson")
    assert read("restarted/0.ndjson") == [*plain[:40], *plain]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ("-o out", "give either FILE or --flights MONTHS"),
        ("logical.ndjson --flights 1 -o out", "give either FILE or --flights MONTHS"),
        ("--flights 13 -o out", "--flights takes months from 1 to 12, as 1,2, or year: '13'"),
        ("--flights ² -o out", "--flights takes months from 1 to 12, as 1,2, or year: '²'"),
        (
            "logical.ndjson -n 2 -o -",
            "standard output takes one stream: -n 1, without --logical",
        ),
        (
            "logical.ndjson --preset A,Q -o out",
            "no preset 'Q': choose of A, B and C, as in A,B,C",
        ),
        ("missing -o out", "cannot read missing: No such file or directory"),
        (
            "logical.ndjson -o logical.ndjson",
            "cannot write into logical.ndjson: it is a file, not a folder",
        ),
        ("logical.ndjson -o logical.ndjson/x", "cannot make logical.ndjson/x: Not a directory"),
        (
            "logical.ndjson --logical -o .",
            "logical.ndjson is the input logical.ndjson itself: write elsewhere",
        ),
    ],
)
def test_a_mistake_is_one_line_and_exit_2(arguments: str, error: str, lmerge: Lmerge) -> None:
    done = lmerge("present", *arguments.split())
    assert (done.code, done.out, done.error) == (2, "", error)


@pytest.mark.parametrize("lie", ["nonsense", "drop", "drop=", "drop=2", "drop=nan", "=1", "x=0.5"])
def test_a_lie_that_is_none_is_refused_with_the_kinds(lie: str, lmerge: Lmerge) -> None:
    done = lmerge("present", "logical.ndjson", "-o", "out", "--lie", lie)
    assert (done.code, done.out) == (2, "")
    assert done.error.startswith(f"--lie takes KIND=FRACTION, as in drop=0.01, not {lie!r}; kinds:")
    assert done.error.endswith("kinds: drop, repeat, shift, early, wrong_vold, unknown, regress")


def test_an_adjust_in_the_logical_stream_is_named_with_its_line(lmerge: Lmerge) -> None:
    write(Path("x"), [Insert(b"1", 1, 2), Stable(1), Adjust(b"1", 1, 2, 3)])
    assert lmerge("present", "x", "-o", "out").error == (
        "x:3: an adjust, but the logical stream has only inserts (stables are ignored)"
    )
