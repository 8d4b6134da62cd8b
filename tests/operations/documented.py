"""What the documentation states, for the tests that hold it and the code to each other."""

import re
from pathlib import Path

from typer.main import get_command

from lmerge_service.cli import app

PAGES = [Path("docs/operations.md"), *sorted(Path("docs/operations").glob("*.md"))]

_ROW = re.compile(r"^\| `(\w+)` \| (\w+) \|([^|]*)\|", re.MULTILINE)
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_CODE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


def documented_metrics(page: str = "metrics") -> dict[str, tuple[str, frozenset[str]]]:
    """By name as a query has it (of a histogram without _bucket): type and labels; of a worker, or
    on another page."""
    rows = _ROW.findall(Path(f"docs/operations/{page}.md").read_text())
    found = {name: (kind, frozenset(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}
    assert len(found) == len(rows), "a metric has two rows"
    return found


def of_metric(name: str) -> frozenset[str]:
    """The labels of a metric that a query names; fails where there is none."""
    if name == "up":  # Prometheus' own
        return frozenset()
    metrics = documented_metrics() | documented_metrics("query-metrics")
    for suffix in ("", "_bucket", "_sum", "_count"):
        base = name.removesuffix(suffix) if suffix else name
        if base in metrics and (not suffix or metrics[base][0] == "histogram"):
            return metrics[base][1]
    raise AssertionError(f"there is no metric {name}")


def anchors_of(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = _HEADING.findall(_CODE.sub("", page.read_text()))
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}


def commands() -> set[str]:
    """What may follow `lmerge`."""
    return set(get_command(app).commands)  # type: ignore[attr-defined]
