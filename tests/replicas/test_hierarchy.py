"""Queries, a merge of them, and a query over what it publishes, brought up as one thing."""

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from lmerge_service.elements import INFINITY
from lmerge_service.queries.loading import load
from lmerge_service.tdb import TDB, differences
from tests.local.running import Upped
from tests.replicas.running import QUERIES, calls, meant, published, send_facts, tdb_of

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

TOPOLOGY = """
name: {name}
kafka: {{bootstrap: {bootstrap}}}
output: {{topic: {merged}}}
key: [at]
case: R3
replicas: [{{name: a, topic: {a}}}, {{name: b, topic: {b}}}]
http: {{port: 0}}
up:
  processes:
    - name: a
      command: [lmerge, query, run, "{queries}:windows", --plan, 1, --to, {a},
                --topic, calls={calls}]
    - name: b
      command: [lmerge, query, run, "{queries}:windows", --plan, 2, --to, {b},
                --topic, calls={calls}]
    - name: busy
      command: [lmerge, query, run, "{queries}:busy", --to, {busy}, --topic, windows={merged}]
      topics: [{merged}]
"""


def test_a_query_over_a_merge_of_queries_one_of_which_is_killed(
    bootstrap: str, topic_name: Callable[..., str], tmp_path: Path
) -> None:
    facts = calls(random.Random(4), 4_000)
    names = {each: topic_name(each) for each in ("calls", "a", "b", "busy", "merged", "name")}
    send_facts(bootstrap, names["calls"], facts[:500], ended=False)
    topology = tmp_path / "up.yaml"
    topology.write_text(TOPOLOGY.format(bootstrap=bootstrap, queries=QUERIES, **names))
    with Upped(tmp_path, topology, bootstrap) as up:
        for name in ("a", "b", "busy"):
            up.until(f"{name} runs", lambda name=name: up.process_of(name).get("pid"))
        up.until("busy publishes", lambda: any(published(bootstrap, names["busy"])))
        send_facts(bootstrap, names["calls"], facts[500:2_000], rate=1_000, ended=False)
        for name in ("a", "busy"):
            os.kill(up.process_of(name)["pid"], signal.SIGKILL)
        send_facts(bootstrap, names["calls"], facts[2_000:], rate=1_000)
        up.until("the end", lambda: tdb_of(bootstrap, names["busy"]).stable == INFINITY, 120)
    windows = meant(load(f"{QUERIES}:windows"), {"calls": facts})
    assert not differences(tdb_of(bootstrap, names["merged"]), windows)
    expected = TDB(event for event in windows if b'"calls":1,' not in event.payload)  # type: ignore[operator]
    assert len(expected) > 20
    assert not differences(tdb_of(bootstrap, names["busy"]), expected)
