"""The page of an audit: whole in itself, escaped, and the same for the same report."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from lmerge_service.elements import INFINITY, START
from lmerge_service.errors import ConfigurationError, EnvironmentMissingError
from lmerge_service.page import check_page, write_page
from lmerge_service.spark.audit.findings import (
    AuditFindings,
    AuditReport,
    Freshness,
    IllegalElement,
    StreamProgress,
    StreamSummary,
)
from lmerge_service.spark.audit.page import page
from lmerge_service.tdb import Difference

EVIL = b'"<script>alert(1)</script>$x$"'
GOOD = AuditReport(
    names=["kafka:merged", "a<b"],
    findings=AuditFindings(
        streams=[
            StreamSummary(1_200, 300, 10, 7, stable=INFINITY),
            StreamSummary(1_200, 500, 40, 7, left_out=9, stable=99),
        ],
        faults=[],
        differences=[],
        differences_total=0,
    ),
    freshness=Freshness([(-4, 2), (3, 900), (40, 20), (73_900, 1)], alone=3),
    progress=[
        StreamProgress(True, [1_700_000_000_000, 1_700_000_060_000], [700, 1_510], [40, INFINITY]),
        StreamProgress(True, [1_700_000_001_000], [1_740], [START]),
    ],
    seconds=2.5,
)
UNLIKE = replace(
    GOOD,
    findings=replace(
        GOOD.findings,
        differences=[Difference(EVIL, 6, ((25,), ())), Difference(b"1", 8, ((9, 9), (INFINITY,)))],
        differences_total=1_234,
    ),
    last_places={
        (EVIL, 6): [["merged-0 at offset 17"], []],
        (b"1", 8): [["merged-1 at offset 3"], ["/a<b at byte 0"]],
    },
)
ILLEGAL = replace(
    GOOD,
    findings=replace(
        GOOD.findings, faults=[IllegalElement(1, 0, 5, "insert with vs=6 < 7", EVIL.decode())]
    ),
    fault_places=["/a<b at byte 5"],
)


class _Read(HTMLParser):
    """The text of a page, and its tags."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [v or "" for k, v in attrs if k in {"src", "href", "xlink:href"}]

    def handle_data(self, data: str) -> None:
        self.text += data


def read(report: AuditReport) -> _Read:
    return _Read(page(report))


def test_the_verdict_is_on_top() -> None:
    for report, verdict in (
        (GOOD, "Legal and equivalent: 2 streams"),
        (UNLIKE, "Not equivalent: they differ in 1,234 events"),
        (ILLEGAL, "Not legal: a<b"),
    ):
        text = read(report).text
        assert verdict in text[text.index("Audit") :][:80]


def test_it_names_streams_differences_and_what_is_not_legal() -> None:
    text = read(UNLIKE).text
    for shown in ("kafka:merged", "a<b", "1,200", "merged-0 at offset 17", "no event", "9, 9"):
        assert shown in text
    assert "Compared as they stand; not ended: a<b." in text
    assert "median 3 ms, 90 % 3 ms, 99 % 40 ms, longest 73,900 ms" in text
    assert "insert with vs=6 < 7" in read(ILLEGAL).text
    assert "/a<b at byte 5" in read(ILLEGAL).text


def test_what_streams_contain_is_text() -> None:
    for report in (UNLIKE, ILLEGAL):
        found = read(report)
        assert "script" not in found.tags
        assert EVIL.decode() in found.text


def test_it_is_whole_in_itself_and_its_pictures_are_well_formed() -> None:
    text = page(GOOD)
    assert all(link.startswith("#") for link in _Read(text).links)
    pictures = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    assert len(pictures) == 2
    for picture in pictures:
        ElementTree.fromstring(picture)  # noqa: S314 (our own)
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    targets = set(re.findall(r'(?:url\(|href=")#([^")]+)', text))
    assert targets <= set(ids)


def test_the_axis_of_freshness_has_numbers_however_alike_delays_are() -> None:
    text = page(replace(GOOD, freshness=Freshness([(130_000, 2), (171_000, 9)], alone=0)))
    picture = text[text.index("<svg") : text.index("</svg>")]
    axis = picture[picture.index("freshness-matplotlib.axis_1") :]
    axis = axis[: axis.index("freshness-matplotlib.axis_2")]
    assert axis.count("<text") > 3  # one is the label
    assert "100,000" in axis


def test_the_same_report_gives_the_same_bytes() -> None:
    assert page(UNLIKE) == page(UNLIKE)


def test_without_times_there_is_no_freshness_and_progress_is_by_share() -> None:
    shares = [StreamProgress(False, [0.5, 1.0], [1, 2], [3, 4])] * 2
    text = page(replace(GOOD, freshness=None, progress=shares))
    assert "Freshness" not in text
    assert "share of the stream" in text
    assert "<svg" not in page(replace(GOOD, freshness=None, progress=[StreamProgress(False)] * 2))


def test_it_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "page.html"
    check_page(path)
    write_page(page(GOOD), path)
    assert [each.name for each in tmp_path.iterdir()] == ["page.html"]
    for wrong in (tmp_path, tmp_path / "none" / "page.html"):
        with pytest.raises(ConfigurationError, match="cannot write"):
            check_page(wrong)
    monkeypatch.setattr("lmerge_service.page.find_spec", lambda _: None)
    with pytest.raises(EnvironmentMissingError, match="pip install matplotlib"):
        check_page(path)
