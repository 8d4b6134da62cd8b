"""The examples of docs/replicas.md do what the page shows, and its tables what the code does."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from lmerge_service.elements import INFINITY, Stable
from lmerge_service.spark.queries.catalogue import QUERIES
from lmerge_service.tdb import TDB, differences, reconstitute
from tests.spark.pages import run_page
from tests.spark.queries.reference import text
from tests.spark.queries.topics import merge_of

PAGE = "docs/replicas.md"


@pytest.mark.full
@pytest.mark.usefixtures("shared_session")
def test_a_query_of_ones_own_becomes_two_replicas(
    bootstrap: str,
    topic_name: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    prefix = topic_name("gates")

    def rename(code: str) -> str:
        return re.sub(r'"gates\.(facts|a|b)"', rf'"{prefix}.\1"', code)

    monkeypatch.chdir(tmp_path)
    run_page(PAGE, rename, bootstrap)
    for topic in ("a", "b"):
        merged = merge_of(bootstrap, [f"{prefix}.{topic}"])
        assert merged[-1] == Stable(INFINITY)
        assert not differences(reconstitute(merged), _expected())
    shown = capsys.readouterr().out
    assert "Batch(number=0, facts=40, refused=0" in shown
    assert re.search(rf"\|{prefix}\.a\|adjust\|", shown), "the early plan revises"
    assert not re.search(rf"\|{prefix}\.b\|adjust\|", shown), "the other does not"


def _expected() -> TDB:
    events = []
    for start in range(-20_000, 100_000, 10_000):
        for gate in ("G0", "G1", "G2"):
            seconds = [
                n for n in range(100)
                if start <= 1000 * n < start + 30_000 and f"G{n % 3}" == gate and n % 10
            ]  # fmt: skip
            if seconds:
                payload = {"gate": gate, "people": len(seconds), "longest": max(seconds)}
                events.append((text(payload), start, start + 30_000))
    return TDB(events)


def test_the_page_names_every_query_with_its_key() -> None:
    page = Path(PAGE).read_text()
    rows = dict(re.findall(r"^\| `([a-z-]+)` \| .* \| (`.*`) \|$", page, re.MULTILINE))
    assert rows == {
        name: ", ".join(f"`{field}`" for field in query.key) for name, query in QUERIES.items()
    }
