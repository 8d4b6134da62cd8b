"""The query on the README's first screen is one, and has the plans that its commands name."""

import re
from pathlib import Path

from lmerge_service.config.topology import load as load_topology
from lmerge_service.queries.loading import load
from lmerge_service.queries.plan_numbering import numbered_plans, summary
from lmerge_service.queries.properties import case
from tests.queries.test_flights import query


def test_the_query_of_the_readme_runs_by_the_plans_that_it_names(tmp_path: Path) -> None:
    page = Path("README.md").read_text()
    (text,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (tmp_path / "delays.py").write_text(text)
    delays = load(f"{tmp_path}/delays.py:delays")
    assert delays.schema == query("delays").schema
    numbers = [int(each) for each in re.findall(r"run delays.py:delays --plan (\d)", page)]
    plans = numbered_plans(delays)
    assert [summary(plans[number - 1]) for number in numbers] == [
        "on_update",
        "on_close, panes",
        "on_update, expand, sources aligned",
    ]
    assert str(case(plans[:3])) == "R3"


def test_the_merge_of_the_readme_reads_what_its_commands_write(tmp_path: Path) -> None:
    page = Path("README.md").read_text()
    (text,) = re.findall(r"```yaml\n(name: delays\n.*?)```", page, re.DOTALL)
    (tmp_path / "delays.yaml").write_text(text)
    topology = load_topology(tmp_path / "delays.yaml")
    written = re.findall(r"run delays.py:delays --plan \d --to (\S+)", page)
    assert [each.topic for each in topology.replicas] == written
    assert f"lmerge read {topology.output.topic}" in page
