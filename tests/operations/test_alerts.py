"""The alert rules: whole, about metrics that there are, each with its way out in the runbook."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.operations.documented import anchors_of, commands, of_metric
from tests.operations.promql import used

RULES = Path("docs/operations/alerts.yaml")
GROUPS = YAML(typ="safe").load(RULES.read_text())["groups"]
ALERTS: dict[str, Any] = {rule["alert"]: rule for group in GROUPS for rule in group["rules"]}
OF_THE_TARGET = {"job", "instance"}


def test_names_are_unique_and_severities_three() -> None:
    assert len(ALERTS) == sum(len(group["rules"]) for group in GROUPS)
    assert len({group["name"] for group in GROUPS}) == len(GROUPS)
    assert {rule["labels"]["severity"] for rule in ALERTS.values()} == {
        "critical",
        "warning",
        "info",
    }


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_is_about_metrics_and_labels_that_there_are(alert: str) -> None:
    metrics, labels = used(ALERTS[alert]["expr"])
    assert metrics
    known = OF_THE_TARGET | {"le"}
    for metric in metrics:
        known |= of_metric(metric)
    assert labels <= known, labels - known


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_explains_what_to_do_and_its_labels_survive_the_aggregation(alert: str) -> None:
    rule = ALERTS[alert]
    annotations = rule["annotations"]
    assert set(annotations) == {"summary", "description", "runbook_url"}
    assert re.match(r"Lmerge[A-Z]\w+$", alert)
    assert len(annotations["summary"]) < 110
    quoted = re.findall(r"`([^`]+)`", annotations["description"])
    assert quoted, "no command to look with"
    for command in quoted:
        if command.startswith("lmerge "):
            assert command.split()[1] in commands(), command
    page, _, anchor = annotations["runbook_url"].partition("#")
    assert anchor in anchors_of(Path(page))
    wanted = set(
        re.findall(r"\$labels\.(\w+)", annotations["summary"] + annotations["description"])
    )
    assert wanted <= carried(rule["expr"])


def carried(expression: str) -> set[str]:
    """The labels that the result has: of the outermost aggregation, else of the first metric."""
    if grouped := re.match(r"(?:\w+\([\d.,\s]*)?\s*(?:sum|max|min) by \(([^)]*)\)", expression):
        return set(re.findall(r"\w+", grouped.group(1)))
    first = re.search(r"\b(?:lmerge|process)_\w+|\bup\b", expression)
    assert first is not None
    return OF_THE_TARGET | of_metric(first.group())


def test_every_kind_of_degraded_health_has_an_alert() -> None:
    everything = " ".join(rule["expr"] for rule in ALERTS.values())
    assert "lmerge_degraded == 1" in everything, "whatever has none of its own"


def test_promtool_accepts_the_rules_where_there_is_one() -> None:
    if (promtool := shutil.which("promtool")) is None:
        pytest.skip("no promtool on the PATH; names and brackets are checked above")
    done = subprocess.run(
        [promtool, "check", "rules", str(RULES)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "wrong", ["sum(x", "rate(x[5m]))", "frobnicate(x)", "x == $", "x{a='1'} ~ 2"]
)
def test_what_is_no_promql_is_found(wrong: str) -> None:
    with pytest.raises(ValueError, match=r"bracket|function|what is"):
        used(wrong)
