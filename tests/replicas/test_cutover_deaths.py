"""A plan of a query in another's place, and `kill -9` of either while both are watched: the output
goes on and is whole, though nobody starts the dead one again."""

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from lmerge_service.elements import INFINITY
from lmerge_service.queries.loading import load
from lmerge_service.tdb import differences
from tests.local.running import Upped, lmerge
from tests.replicas.running import QUERIES, calls, meant, send_facts, tdb_of

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

TOPOLOGY = """
name: {name}
kafka: {{bootstrap: {bootstrap}}}
output: {{topic: {merged}}}
key: [at]
case: R3
time_unit: none
replicas: [{{name: old, topic: {old}}}]
http: {{port: 0}}
up:
  processes:
    - name: old
      command: [lmerge, query, run, "{queries}:windows", --plan, 2, --to, {old},
                --topic, calls={calls}]
      restart: {{when: never}}
    - name: new
      command: [lmerge, query, run, "{queries}:windows", --plan, 1, --to, {new},
                --topic, calls={calls}]
      restart: {{when: never}}
    - name: cutover
      command: [lmerge, cutover, --from, old, --to, new, --topic, {new}, --watch, 3000]
      topics: [{old}, {new}]
      restart: {{when: never}}
"""


def _cutover(up: Upped, name: str) -> object:
    return (up.status(name).get("cutover") or {}).get("state")


def _detach(up: Upped, name: str) -> None:
    """As the status advises where a replica is gone for good and the others have ended."""
    token = ("--token-file", str(Path(up.shown["folder"]) / "token"))
    command = lmerge(up.folder, "detach", name, "--at", up.shown["workers"][0]["at"], *token)
    assert command.returncode == 0, command.stderr


@pytest.mark.parametrize(("dies", "in_the_end"), [("old", "done"), ("new", "aborted")])
def test_a_plan_that_dies_in_a_cutover_takes_nothing_along(
    bootstrap: str, topic_name: Callable[..., str], tmp_path: Path, dies: str, in_the_end: str
) -> None:
    facts = calls(random.Random(9), 4_000)
    names = {each: topic_name(each) for each in ("calls", "old", "new", "merged", "name")}
    merged = names["merged"]
    send_facts(bootstrap, names["calls"], facts[:500], ended=False)
    topology = tmp_path / "up.yaml"
    topology.write_text(TOPOLOGY.format(bootstrap=bootstrap, queries=QUERIES, **names))
    with Upped(tmp_path, topology, bootstrap) as up:
        up.until("both to be watched", lambda: _cutover(up, names["name"]) == "watching", 120)
        send_facts(bootstrap, names["calls"], facts[500:1_000], rate=500, ended=False)
        os.kill(up.process_of(dies)["pid"], signal.SIGKILL)
        up.until(f"{dies} to be dead", lambda: not up.process_of(dies).get("pid"))
        send_facts(bootstrap, names["calls"], facts[1_000:], rate=1_000)
        at = tdb_of(bootstrap, names[dies]).stable
        up.until("the output to go on", lambda: tdb_of(bootstrap, merged).stable > at + 3_000, 120)
        if dies == "new":
            assert _cutover(up, names["name"]) == "watching"
            _detach(up, dies)
        up.until("the end", lambda: tdb_of(bootstrap, merged).stable == INFINITY, 120)
        up.until("the cutover", lambda: _cutover(up, names["name"]) == in_the_end)
        assert tdb_of(bootstrap, names[dies]).stable == at
    expected = meant(load(f"{QUERIES}:windows"), {"calls": facts})
    assert not differences(tdb_of(bootstrap, merged), expected)
