"""What the documentation says of the metrics, for the tests of metrics, dashboard and alerts."""

import re
from pathlib import Path

METRICS = Path("docs/operations/metrics.md")

_ROW = re.compile(r"^\| `(\w+)` \| (\w+) \|([^|]*)\|", re.MULTILINE)


def documented_metrics() -> dict[str, tuple[str, frozenset[str]]]:
    """By name as a query has it (of a histogram without _bucket): type and labels."""
    rows = _ROW.findall(METRICS.read_text())
    found = {name: (kind, frozenset(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}
    assert len(found) == len(rows), "a metric has two rows"
    return found
