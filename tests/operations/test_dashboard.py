"""The dashboard: importable anywhere, and each query about metrics and labels that there are."""

import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from tests.operations.documented import documented_metrics, of_metric
from tests.operations.promql import used

DASHBOARD: dict[str, Any] = json.loads(Path("docs/operations/grafana.json").read_text())
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
VARIABLES: dict[str, Any] = {each["name"]: each for each in DASHBOARD["templating"]["list"]}
QUERIES = [target["expr"] for panel in PANELS for target in panel.get("targets", [])]
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
OF_THE_TARGET = {"job", "instance"}


def plain(query: str) -> str:
    """Without the variables, which stand in strings and ranges only."""
    return re.sub(r"\$\w+", "x", query)


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_is_about_metrics_and_labels_that_there_are(query: str) -> None:
    metrics, labels = used(plain(query))
    assert metrics
    known = OF_THE_TARGET | {"le"}
    for metric in metrics:
        known |= of_metric(metric)
    assert labels <= known, labels - known


def test_every_panel_has_an_id_a_source_of_the_variable_and_a_place_of_its_own() -> None:
    ids = [panel["id"] for panel in PANELS]
    assert len(set(ids)) == len(ids)
    titles = [panel["title"] for panel in PANELS]
    assert len(set(titles)) == len(titles)
    for panel in PANELS:
        if panel["type"] == "row":
            continue
        assert panel["datasource"] == SOURCE
        assert panel["targets"]
        assert all(target["datasource"] == SOURCE for target in panel["targets"])
        refs = [target["refId"] for target in panel["targets"]]
        assert len(set(refs)) == len(refs)
    for one, other in combinations((panel["gridPos"] for panel in PANELS), 2):
        assert not overlap(one, other), (one, other)
        assert one["x"] + one["w"] <= 24


def overlap(one: dict[str, int], other: dict[str, int]) -> bool:
    return (
        one["x"] < other["x"] + other["w"]
        and other["x"] < one["x"] + one["w"]
        and one["y"] < other["y"] + other["h"]
        and other["y"] < one["y"] + one["h"]
    )


def test_it_can_be_imported_anywhere() -> None:
    assert VARIABLES["datasource"]["type"] == "datasource"
    assert VARIABLES["datasource"]["query"] == "prometheus"
    for name in ("job", "partition", "replica"):
        assert VARIABLES[name]["datasource"] == SOURCE
        metrics, _ = used(plain(VARIABLES[name]["definition"]).replace(f", {name}", ""))
        assert all(name in of_metric(metric) | {"job"} for metric in metrics)
    named = {name for query in QUERIES for name in re.findall(r"\$(\w+)", query)}
    assert named <= set(VARIABLES) | {"__rate_interval"}
    assert isinstance(DASHBOARD["schemaVersion"], int)
    assert "id" not in DASHBOARD, "it would overwrite another one"


def test_no_metric_of_ours_is_left_out_but_those_that_others_show_better() -> None:
    shown: set[str] = set()
    for query in QUERIES:
        shown |= used(plain(query))[0]
    left = {name for name in documented_metrics() if name.startswith("lmerge_")}
    left -= {re.sub(r"_bucket$", "", name) for name in shown}
    assert left == {
        "lmerge_build_info",  # the variable `job`
        "lmerge_native_share",
        "lmerge_replica_unusual_records_total",  # how the engine fares is a matter of rates
        "lmerge_ready", "lmerge_degraded", "lmerge_task_phase",  # states and reasons show more
        "lmerge_group_generation", "lmerge_leader_switches_total",
        "lmerge_leader_since_timestamp_seconds",  # /status has the reason beside it
        "lmerge_detached_records_total",
        "lmerge_replica_lost_events_total",  # a reason, with both replicas
        "lmerge_topic_unwritable", "lmerge_topics_recreated_total",  # reasons, with what to do
        "lmerge_commit_under_way_seconds", "lmerge_unwritten_records_total",
        "lmerge_feedback_records_total",
        "lmerge_cutover_state", "lmerge_cutover_divergences",  # its command shows it
        "lmerge_output_ended", "lmerge_output_gap",  # a reason; points end
        "lmerge_output_incarnation",  # an alert, once in years
        "lmerge_replica_behind_output_seconds",  # in the topology's unit
        "lmerge_replica_confirmed_timestamp_seconds",  # likewise
        "lmerge_replica_ended", "lmerge_replica_idle_seconds", "lmerge_replica_incarnation",
        "lmerge_replica_partitions", "lmerge_replica_read_alone",
        "lmerge_replica_silent_partitions",
        "lmerge_replica_open_transaction_seconds", "lmerge_replica_silent_seconds",  # reasons
    }  # fmt: skip
