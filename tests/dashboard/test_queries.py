"""Replicas that are queries: the plan with what passes each node."""

from typing import Any

from lmerge_service.dashboard.queries import NodeRow, query_of
from lmerge_service.dashboard.rates import Rates

TREE = ["join on k", "├─ windows tumbling(60)", "│  └─ facts f (k: str)", "└─ facts g (k: str)"]


def status(taken: int, **more: Any) -> dict[str, Any]:
    """The windows are panes that are merged: two operators."""
    return {
        "query": "q.py:late", "plan": "1", "to": "t.a", "state": "running", "reasons": [],
        "tree": TREE, "tree_nodes": [3, 1, 0, 2], "held": {"bytes": 7},
        "inputs": [{"name": "f", "records": 2 * taken}, {"name": "g", "records": 5}],
        "operators": [
            {"operator": "Panes", "node": 1, "held": 2, "taken": taken, "emitted": taken // 2,
             "nanoseconds": 10 * taken},
            {"operator": "Windows", "node": 1, "held": 3, "taken": taken // 2,
             "emitted": taken // 4, "nanoseconds": 20 * taken},
            {"operator": "Join", "node": 3, "held": 4, "taken": 8, "emitted": 9,
             "nanoseconds": 10 * taken},
        ],
        **more,
    }  # fmt: skip


def nodes(*documents: dict[str, Any]) -> list[NodeRow]:
    rates = Rates()
    for second, document in enumerate(documents):
        found = query_of("http://127.0.0.1:1", document, None, rates, float(second))
    return list(found.nodes)


def test_a_line_of_the_plan_has_its_operators_with_rates_and_state() -> None:
    join, windows, facts, others = nodes(status(0), status(400))
    assert [each.line for each in (join, windows, facts, others)] == TREE
    assert (join.operators, join.held, join.share) == ("Join", 4, 0.25)
    assert (windows.operators, windows.held, windows.share) == ("Panes → Windows", 5, 0.75)
    assert (windows.taken, windows.in_per_second) == (400, 400.0)
    assert (windows.emitted, windows.out_per_second) == (100, 100.0)
    assert (facts.operators, facts.emitted, facts.out_per_second) == ("", 800, 800.0)
    assert others.out_per_second == 0.0


def test_operators_of_no_node_have_lines_of_their_own() -> None:
    switch = {"operator": "SwitchedOutput", "held": 6}
    *_, last = nodes(status(0, operators=[*status(0)["operators"], switch]))
    assert (last.line, last.operators, last.held, last.taken) == ("", "SwitchedOutput", 6, None)


def test_a_query_of_another_version_shows_its_plan_and_its_operators() -> None:
    old = {key: value for key, value in status(0).items() if key != "tree_nodes"}
    for each in old["operators"]:
        del each["node"]
    found = nodes(old)
    assert [each.line for each in found[:4]] == TREE
    assert [each.operators for each in found[4:]] == ["Panes", "Windows", "Join"]
