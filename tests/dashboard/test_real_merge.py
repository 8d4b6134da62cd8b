"""The page in a real browser over a real merge: Kafka, workers, and replicas that are killed."""

import re
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lmerge_service.elements import Insert, Stable
from lmerge_service.local.broker import LocalBroker, free_port
from tests.cli.conftest import LMERGE, environment
from tests.conftest import MAKES_TOPICS
from tests.dashboard.browser import SECONDS, Dashboard, confirm, need_browser, opened
from tests.dashboard.real import BEGINNING, STEP, TOKEN, RealMerge

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.full, pytest.mark.kafka, pytest.mark.timeout(600)]

EVIL = "<script>window.owned = 1</script><img src=x onerror='window.owned = 1'>"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    """One that may be paused."""
    need_browser()
    with LocalBroker(tmp_path_factory.mktemp("kafka"), settings=MAKES_TOPICS) as found:
        yield found


@pytest.fixture
def real(broker: LocalBroker, tmp_path: Path) -> Iterator[RealMerge]:
    with RealMerge(broker.bootstrap, tmp_path) as found:
        yield found


def watching(real: RealMerge, folder: Path) -> Dashboard:
    return Dashboard(folder, real.path, *(each.address for each in real.workers))


def row(page: "Page", replica: str) -> str:
    return page.inner_text(f'tr[data-replica="{replica}"]')


def panel(page: "Page", name: str) -> str:
    return page.inner_text(f'[data-panel="{name}"]')


def until(page: "Page", name: str, text: str) -> None:
    """A panel shows a text, whatever the white space."""
    deadline = time.monotonic() + SECONDS / 1_000
    while text not in (shown := " ".join(panel(page, name).split())):
        assert time.monotonic() < deadline, f"{text!r} is not in {shown!r}"
        page.wait_for_timeout(200)


def chart(page: "Page", label: str) -> dict[str, Any]:
    """A chart as ECharts has it."""
    found = page.evaluate(
        "label => getElement(document.querySelector(label).id.slice(1)).chart.getOption()", label
    )
    return dict(found)


def lines(options: dict[str, Any]) -> dict[str, list[Any]]:
    """The values of each line, None where there is a gap."""
    return {s["name"]: [value for _, value in s["data"]] for s in options["series"] if s["data"]}


def band(options: dict[str, Any]) -> list[str]:
    """Who led, one after the other."""
    (marked,) = [each for each in options["series"] if each["name"] == "leader"]
    return [area[0]["name"] for area in marked["markArea"]["data"]]


def test_each_panel_while_the_leader_is_killed(real: RealMerge, tmp_path: Path) -> None:
    real.start(("a", 60), ("b", 50), ("c", 20))
    with watching(real, tmp_path) as dashboard, opened(dashboard) as page:
        page.wait_for_selector('tr[data-replica="a"]:has-text("leads")')
        until(page, "headline", "all is well")
        page.wait_for_timeout(4_000)
        real.published["a"].kill()
        page.wait_for_selector('tr[data-replica="b"]:has-text("leads")')
        until(page, "headline", "led by b")
        until(page, "shape", "b ◀ leads")
        until(page, "shape", "led by b")
        until(page, "log", "b leads, after a: stable(")
        until(page, "attention", "a has brought nothing new for 1")  # its worker takes a minute
        until(page, "headline", "1 quiet replica")
        until(page, "shape", "joined, quiet")
        page.wait_for_function(
            "() => !document.querySelector('tr[data-replica=\"a\"] [data-label=behind]')"
            ".innerText.startsWith('0 ')"
        )
        assert "2023-11-14" in row(page, "a")
        page.wait_for_timeout(3_000)  # the charts are drawn each two seconds

        race = chart(page, ".race")
        found = lines(race)
        assert set(found) == {"a", "b", "c", "the output"}
        assert found["a"][-1] == found["a"][-3], "it is dead"
        assert found["b"][-1] > found["b"][0]
        assert found["the output"][-1] > found["a"][-1]
        assert band(race)[-2:] == ["a", "b"]
        for number, named in enumerate(("rate", "latency", "live", "memory")):
            drawn = lines(chart(page, f".number:nth-child({number + 1})"))
            assert any(each is not None for values in drawn.values() for each in values), named
        page.hover(".race canvas")
        page.wait_for_selector('.race div:has-text("the output")')
        hovered = page.locator('.race div:has-text("the output")').last.inner_text()
        times = re.findall(r"[0-9-]+ [0-9:]+", hovered)
        assert [each[:10] for each in times] == ["2023-11-14"], "the stream's, and no other"
        page.click('button:has-text("1 min")')
        page.wait_for_timeout(2_500)
        axis = chart(page, ".race")["xAxis"][0]
        assert 25_000 < axis["max"] - axis["min"] < 62_000
        page.click('button:has-text("distance to the furthest")')
        page.wait_for_timeout(2_500)
        assert max(each[-1] for each in lines(chart(page, ".race")).values()) == 0

        page.select_option("#log-kind", "leader")
        shown = page.locator('[data-panel="log"] tr:visible')
        assert shown.count() >= 1
        assert all("leader" in each for each in shown.all_inner_texts())
        page.fill("#log-words", "no such words")
        assert shown.count() == 0


def test_a_killed_worker_another_that_goes_on_and_both_away(
    real: RealMerge, tmp_path: Path
) -> None:
    real.start(("a", 40), ("b", 30), ("c", 20))
    with watching(real, tmp_path) as dashboard, opened(dashboard) as page:
        until(page, "headline", "all is well")
        first = real.leading
        other = 1 - first
        real.workers[first].kill()
        until(page, "attention", f"{real.workers[first].address} does not answer")
        until(page, "attention", "start the worker again")
        until(page, "log", f"moved from {real.workers[first].address} to")
        until(page, "workers", "away")
        page.wait_for_selector('tr[data-replica="a"]:has-text("leads")')
        real.workers[other].kill()
        until(page, "headline", "no worker answers")
        assert "2023-11-14" in row(page, "a"), "what was known stays"
        page.wait_for_timeout(7_000)
        real.again(first)
        real.again(other)
        until(page, "workers", "running")
        until(page, "workers", "standby")
        page.wait_for_selector('tr[data-replica="a"]:has-text("leads")')
        page.wait_for_timeout(5_000)
        assert None in lines(chart(page, ".race"))["the output"], "a gap is a gap"


def test_kafka_is_away_and_comes_back(real: RealMerge, broker: LocalBroker, tmp_path: Path) -> None:
    real.start(("a", 40), ("b", 30), ("c", 20), workers=1)
    with watching(real, tmp_path) as dashboard, opened(dashboard) as page:
        until(page, "headline", "all is well")
        broker.pause()
        try:
            until(page, "headline", "somebody should look")
            until(page, "attention", "What to do: look")
        finally:
            broker.resume()
        until(page, "headline", "all is well")


def test_each_decision_is_made_by_a_real_worker_and_only_with_its_token(
    real: RealMerge, tmp_path: Path
) -> None:
    real.merge.topics |= {name: f"{real.merge.name}.{name}" for name in "de"}
    real.start(("a", 30), ("b", 30), ("c", 30), ("d", 30))
    real.merge.send_raw(real.merge.topics["e"], [])
    with watching(real, tmp_path) as dashboard, opened(dashboard) as page:

        def begin(opener: str, **fields: str) -> None:
            page.click(opener)
            page.wait_for_selector(".lm-confirm")
            for name, value in fields.items():
                page.fill(f".lm-field-{name} input", value)

        def decide(opener: str, **fields: str) -> None:
            begin(opener, **fields)
            answer = confirm(page)
            assert answer.startswith("version "), answer
            close()

        def close() -> None:
            page.click("text=Close")
            page.wait_for_selector(".q-dialog", state="detached")

        begin('[data-act="quarantine"][data-replica="c"]', reason=EVIL)
        assert "read-only" in confirm(page)
        page.fill(".lm-token input", "not-the-token-of-these")
        assert "token" in confirm(page)
        assert "version 1" in panel(page, "headline")
        page.fill(".lm-token input", TOKEN)
        assert confirm(page).startswith("version 2")
        close()
        page.wait_for_selector('tr[data-replica="c"]:has-text("■")')
        until(page, "log", "quarantine c")
        until(page, "replicas", "<script>window.owned")  # as a text
        decide('[data-act="release"][data-replica="c"]')
        page.wait_for_selector('tr[data-replica="c"]:has-text("joined")')
        decide(".lm-policy", stable="quorum(2)")
        until(page, "headline", "quorum(2)")
        decide('[data-act="detach"][data-replica="c"]')
        page.wait_for_selector('tr[data-replica="c"]', state="detached")
        until(page, "replicas", "Detached: c")
        decide(".lm-attach", name="d", topic=real.merge.topics["d"])
        page.wait_for_selector('tr[data-replica="d"]:has-text("joined")')

        begin(".lm-attach", name="a", topic=real.merge.topics["e"])
        assert confirm(page).startswith("refused: ")
        close()

        begin(".lm-cutover", coming="c", topic=real.merge.topics["c"], watch=str(5 * STEP))
        page.click(".lm-field-leaving")
        page.click('.q-menu .q-item:has-text("a")')
        page.click("text=Dry run")
        page.wait_for_selector(".report")
        assert "c" in page.inner_text(".report")
        page.wait_for_selector(".card [role=status].is-good")
        assert confirm(page).startswith("version ")
        close()
        until(page, "cutover", "a → c")
        until(page, "cutover", "● done")
        page.wait_for_selector('tr[data-replica="a"]', state="detached")

        begin(".lm-cutover", coming="e", topic=real.merge.topics["e"])
        page.click(".lm-field-leaving")
        page.click('.q-menu .q-item:has-text("b")')
        assert confirm(page).startswith("version ")
        close()
        until(page, "cutover", "Task 0 waits")
        decide('[data-act="abort"]', reason="not today")
        until(page, "cutover", "✕ aborted")
        until(page, "cutover", "not today")
        page.wait_for_timeout(2_000)
        assert page.evaluate("window.owned") is None


def test_what_a_guard_holds_and_whom_one_quarantines_is_resolved_from_the_page(
    real: RealMerge, tmp_path: Path
) -> None:
    merge, far = real.merge, BEGINNING + 10**8
    merge.topics["d"] = f"{merge.name}.d"
    merge.extra["guards"] = {"max_leap": 10_000 * STEP, "patience_seconds": None}
    merge.write()
    real.start(("a", 30), ("b", 30))
    with (
        ThreadPoolExecutor(1) as pool,
        watching(real, tmp_path) as dashboard,
        opened(dashboard) as page,
    ):

        def publish(replica: str, elements: list[Stable]) -> None:
            pool.submit(merge.publish, replica, elements).result()  # the browser has our loop

        for replica in "ab":
            page.wait_for_selector(f'tr[data-replica="{replica}"]:has-text("joined")')
        publish("c", [Stable(far)])
        until(page, "attention", "c: the guard “leap” holds a stable")
        until(page, "attention", "(partition 0, offset 0): stable(")
        until(page, "attention", "What to do: it is merged once another replica has come as far")
        until(page, "attention", "It waits for a: ")
        page.wait_for_selector('tr[data-replica="c"]:has-text("▲")')
        assert "led by c" not in panel(page, "headline")

        page.click('[data-act="quarantine"][data-replica="c"]')
        page.wait_for_selector(".lm-confirm")
        page.fill(".lm-field-reason input", "it leaps")
        page.fill(".lm-token input", TOKEN)
        assert confirm(page).startswith("version 2")
        page.click("text=Close")
        until(page, "attention", "in quarantine: it leaps")
        assert "the guard" not in panel(page, "attention")

        publish("d", [Stable(time.time_ns() // 10**6 + 10**10)])
        page.wait_for_selector('tr[data-replica="d"]:has-text("■")')
        assert "ahead of the wall clock" in row(page, "d")
        until(page, "log", "quarantine d, by guard: clock_skew")
        for replica in "cd":
            page.click(f'[data-act="release"][data-replica="{replica}"]')
            page.wait_for_selector(".lm-confirm")
            assert confirm(page).startswith("version ")
            page.click("text=Close")
            page.wait_for_selector(".q-dialog", state="detached")
            page.wait_for_selector(f'tr[data-replica="{replica}"]:has-text("joined")')
        publish("c", [Stable(BEGINNING)])  # what it had sent does not count any more
        page.wait_for_function(
            "() => !/the guard|in quarantine/.test("
            "document.querySelector('[data-panel=attention]').innerText)"
        )


def test_findings_open_their_evidence(real: RealMerge, tmp_path: Path) -> None:
    real.start(("a", 40), ("b", 30), ("c", 30), workers=1)
    topic = real.merge.topics["b"]
    early, far = Insert(b'"early"', BEGINNING, BEGINNING + 1), BEGINNING + 10**8
    real.merge.publish("b", [early])
    real.merge.send_raw(topic, [EVIL.encode()])
    for _ in range(2):
        real.merge.publish("b", [Insert(b'"numbered"', far, far + 1)], seq=1)
    with watching(real, tmp_path) as dashboard, opened(dashboard) as page:
        for finding, what in (
            ("breaches", '"early"'), ("dead letters", EVIL), ("repeats", '"numbered"'),
        ):  # fmt: skip
            page.click(f'[data-finding="{finding}"][data-replica="b"]')
            page.wait_for_selector(f'.card h3:text-is("{finding}")')
            first = page.inner_text(".card table.cards >> nth=0")
            assert f"{topic} 0@" in first, finding
            assert what in first, finding
            page.click("text=Close")
            page.wait_for_selector(".q-dialog", state="detached")
        page.wait_for_timeout(1_000)
        assert page.evaluate("window.owned") is None


def test_a_gap_is_accepted(real: RealMerge, tmp_path: Path) -> None:
    correct = BEGINNING + 100 * STEP
    merge = real.merge
    merge.topics = {"d": merge.topics["a"]}
    merge.extra |= {"replicas": [{"name": "d", "topic": merge.topics["d"], "joining_at": correct}]}
    merge.write()
    merge.publish("d", [Insert(b'"x"', correct + 10, correct + 50), Stable(correct + 20)])
    real.start(workers=1)
    with watching(real, tmp_path) as dashboard, opened(dashboard) as page:
        until(page, "attention", "A gap holds the output")
        page.click('[data-act="accept-gap"]')
        page.wait_for_selector(".lm-confirm")
        assert page.input_value(".lm-field-input input") == "d"
        page.fill(".lm-field-until input", str(correct))
        page.fill(".lm-token input", TOKEN)
        assert confirm(page).startswith("version 2")
        page.click("text=Close")
        page.wait_for_selector('tr[data-replica="d"]:has-text("joined")')
        until(page, "attention", "Nothing needs attention")


QUERY = """
from lmerge_service.queries.plan import count, facts, tumbling

late = facts("f", time="t", fields={"k": str, "t": int}).windows(tumbling(10)).by("k")
late = late.aggregate(n=count())
"""


def test_a_replica_that_is_a_query_shows_what_passes_each_node_of_its_plan(
    real: RealMerge, tmp_path: Path
) -> None:
    (tmp_path / "q.py").write_text(QUERY)
    facts = f"{real.merge.name}.facts"

    def feed(number: int) -> None:
        values = [b'{"k": "%d", "t": %d}' % (n % 3, number * 1_000 + n) for n in range(1_000)]
        real.merge.send_raw(facts, values)

    feed(0)
    address = f"http://127.0.0.1:{free_port()}"
    command = [
        *LMERGE, "query", "run", "q.py:late", "--topic", f"f={facts}", "--to",
        real.merge.topics["a"], "--bootstrap", real.merge.bootstrap, "--http-port",
        address.rpartition(":")[2],
    ]  # fmt: skip
    with (tmp_path / "query.log").open("w") as log:
        query = subprocess.Popen(
            command, cwd=tmp_path, stdout=log, stderr=log, env=environment()
        )  # fmt: skip
    try:
        real.start(("b", 30), ("c", 30), workers=1)
        options = [real.path, real.workers[0].address, address]
        with (
            ThreadPoolExecutor(1) as pool,
            Dashboard(tmp_path, *options) as dashboard,
            opened(dashboard) as page,
        ):
            until(page, "queries", "plan: each line is fed by those below it")
            node = page.locator('.plan tr:has-text("windows tumbling(10)")')
            for number in range(1, 60):
                pool.submit(feed, number).result()  # this thread's loop is the browser's
                rates = node.locator("td.n").all_inner_texts()
                if rates and rates[0] not in {"?", "0"}:
                    break
                page.wait_for_timeout(500)
            assert rates[0] not in {"?", "0"}, "elements a second into it"
            assert int(rates[2].replace(",", "")) >= 1_000, "taken"
            until(page, "queries", "facts f (k: str, t: int)")
            query.kill()
            until(page, "queries", "away")
    finally:
        query.kill()
        query.wait()
