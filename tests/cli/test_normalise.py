"""`lmerge merge --normalise`."""

import json
from pathlib import Path
from random import Random

from lmerge_service.elements import Insert
from lmerge_service.tdb import TDB, reconstitute
from tests.cli.conftest import Lmerge
from tests.core.test_normaliser import canonical, history, plans
from tests.offline.streams import on_the_wire, read, write, write_all


def test_inputs_cut_into_other_intervals_are_merged_into_one_form(lmerge: Lmerge) -> None:
    rng = Random(1)
    found = [event._replace(payload=f"p{event.payload}") for event in history(rng)]
    streams = plans(rng, found)
    write_all("", streams)
    files = "0.ndjson", "1.ndjson"
    expected = reconstitute(map(on_the_wire, [Insert(*event) for event in found]))

    as_they_are = json.loads(lmerge("merge", *files, "-o", "as-they-are.ndjson", "--json").out)
    wrong = reconstitute(read("as-they-are.ndjson"))
    assert TDB(canonical(wrong)) != expected, "other payloads at some instant"
    assert as_they_are["breaches"] > 0

    done = lmerge("merge", *files, "-o", "out.ndjson", "--normalise", "--json")
    assert (done.code, done.err) == (0, "")
    assert reconstitute(read("out.ndjson")) == expected
    document = json.loads(done.out)
    assert document["breaches"] == 0
    assert document["elements"] == sum(map(len, streams)) == as_they_are["elements"]


def test_a_case_without_revisions_is_a_mistake_and_leaves_no_output(lmerge: Lmerge) -> None:
    write(Path("whole.ndjson"), [on_the_wire(Insert("b", 1, 15))])
    done = lmerge("merge", "whole.ndjson", "-o", "out.ndjson", "--normalise", "--case", "R2")
    assert done.code == 2
    assert done.error == "normalising needs case R3 or R4, not R2: the canonical form is revised"
    assert not Path("out.ndjson").exists()
