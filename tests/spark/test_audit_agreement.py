"""The audit at scale finds what the audit in one process finds, in thousands of cases."""

from collections import Counter
from collections.abc import Sequence

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from lmerge_service.spark.audit.findings import AuditFindings
from lmerge_service.spark.audit.judging import Terms, judged
from lmerge_service.spark.audit.scanning import scanned
from lmerge_service.spark.audit.screening import odd_of, screened
from tests.spark.audit_cases import (
    STREAMS,
    WIDTH,
    Case,
    case_of,
    expected,
    expected_by_key,
    rows_of,
)

DAILY = range(2_000)
NIGHTLY = range(2_000, 59_000)
OFTEN = 10
"""So many cases of each kind are among the daily ones, at least."""


def findings_of(
    spark: SparkSession,
    cases: Sequence[Case],
    *,
    keyed: bool = False,
    clipped: bool = False,
    chunk: int = 1 << 18,
) -> dict[int, AuditFindings]:
    """By seed, of all in one job, with so many rows in a chunk of its scan."""
    rows = spark.createDataFrame(rows_of(cases))
    terms = Terms(keyed, clipped, None, dict.fromkeys(range(STREAMS), WIDTH))
    scan = scanned(rows, ["case"], chunk=chunk)
    with judged(rows, STREAMS, terms, ["case"], scan=scan) as result:
        return {case[0]: findings for case, findings in result.findings.items()}


def faults_of(found: AuditFindings) -> set[tuple[int, int, int, str]]:
    return {(each.stream, each.partition, each.place, each.why) for each in found.faults}


def kind_of(why: str) -> str:
    return "unknown event" if "does not hold" in why else why.partition(" ")[0].partition("(")[0]


def compare_all(spark: SparkSession, seeds: Sequence[int], chunk: int = 1 << 18) -> Counter[str]:
    """Asserts that both find the same in each case; returns what kinds of cases there were."""
    cases = [case for case in map(case_of, seeds) if any(case.streams)]
    plain = findings_of(spark, cases, chunk=chunk)
    clipped = findings_of(spark, cases, clipped=True, chunk=chunk)
    kinds: Counter[str] = Counter()
    for case in cases:
        wanted, found, cut = expected(case), plain[case.seed], clipped[case.seed]
        seed = f"seed {case.seed}"
        if wanted.refused:
            assert not found.legal, seed
            kinds["refused"] += 1
            continue
        assert faults_of(found) == faults_of(cut) == wanted.faults, seed
        if wanted.faults:
            kinds.update(kind_of(why) for *_, why in wanted.faults)
            continue
        for of_spark, of_python in zip(found.streams, wanted.streams, strict=True):
            for name in ("events", "inserts", "adjusts", "stables", "stable", "complete"):
                assert getattr(of_spark, name) == getattr(of_python, name), (seed, name)
        assert sorted(found.differences) == sorted(wanted.differences), seed
        assert found.differences_total == len(wanted.differences), seed
        assert sorted(cut.differences) == sorted(wanted.clipped), seed
        assert cut.before == wanted.before, seed
        kinds["equivalent" if found.equivalent else "not equivalent"] += 1
        kinds["equivalent as far as final"] += cut.equivalent and not found.equivalent
        kinds["not even as far as final"] += not cut.equivalent
        kinds["several of a key"] += any(each.doubled for each in found.streams)
        kinds["started over"] += any(each.left_out for each in found.streams)
    return kinds


@pytest.mark.full
def test_both_agree_on_thousands_of_cases_whole_and_broken(spark: SparkSession) -> None:
    kinds = compare_all(spark, DAILY)
    wanted = {"insert", "adjust", "stable", "unknown event", "equivalent", "not equivalent"}
    wanted |= {"equivalent as far as final", "not even as far as final"}
    wanted |= {"several of a key", "started over"}
    assert {kind for kind, count in kinds.items() if count >= OFTEN} >= wanted, kinds
    assert kinds["refused"], kinds


@pytest.mark.full
@pytest.mark.parametrize(
    "seeds", [DAILY[:500], pytest.param(DAILY[500:1_000], marks=pytest.mark.deep)]
)
def test_by_key_it_finds_what_the_letter_of_r3_finds(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, seeds: range
) -> None:
    """And that, with slices that are too many and are taken together."""
    monkeypatch.setattr("lmerge_service.spark.audit.judging.MOST_SLICES", 2_000)
    cases = [case for case in map(case_of, seeds) if any(case.streams)]
    found = findings_of(spark, cases, keyed=True, chunk=500)
    kinds: Counter[str] = Counter()
    for case in cases:
        wanted, result = expected_by_key(case), found[case.seed]
        if wanted.refused:
            assert not result.legal, case.seed
            continue
        assert faults_of(result) == wanted.faults, case.seed
        assert sorted(result.differences) == sorted(wanted.differences), case.seed
        kinds["legal"] += result.legal
        kinds["equivalent"] += result.equivalent
        kinds["inserted again"] += result.legal and any(each.doubled for each in result.streams)
    assert min(kinds[kind] for kind in ("legal", "equivalent", "inserted again")) >= OFTEN, kinds


@pytest.mark.deep
def test_chunks_may_cut_slices_anywhere(spark: SparkSession) -> None:
    kinds = compare_all(spark, NIGHTLY[:400], chunk=40)
    assert kinds["equivalent"] >= OFTEN


@pytest.mark.deep
@pytest.mark.parametrize("start", range(NIGHTLY.start, NIGHTLY.stop, 9_500))
def test_both_agree_on_many_more(spark: SparkSession, start: int) -> None:
    compare_all(spark, range(start, start + 9_500))


@pytest.mark.deep
def test_what_is_plain_is_not_looked_at_twice(spark: SparkSession) -> None:
    """Else the second look would cost as much as the first."""
    cases = [case_of(seed) for seed in range(300)]
    terms = Terms(widths=dict.fromkeys(range(STREAMS), WIDTH))
    with judged(spark.createDataFrame(rows_of(cases)), STREAMS, terms, ["case"]) as result:
        plain = [
            case
            for (case,), found in result.findings.items()
            if found.equivalent and not any(each.doubled for each in found.streams)
        ]
        assert len(plain) >= OFTEN
        rows = result.rows.where(F.col("case").isin(plain))
        scan = scanned(rows, ["case"])
        size = scan.agg(F.sum(F.length("bundle"))).head()
        assert size is not None
        assert size[0] > 500 * 48
        assert odd_of(screened(scan, STREAMS, pieces=2)).collect() == []
