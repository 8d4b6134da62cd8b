"""The page in a real browser: what it shows, who may act, and that nothing it is given runs."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from lmerge_service.local.broker import free_port
from tests.certificates import Authority
from tests.dashboard.browser import Dashboard, confirm, in_browser, need_browser, opened
from tests.dashboard.documents import output, replica, status, task
from tests.dashboard.served import TOKEN, ServedWorker, served

if TYPE_CHECKING:
    pass

pytestmark = [pytest.mark.xdist_group("browser"), pytest.mark.timeout(600)]


@pytest.fixture
def worker() -> Iterator[ServedWorker]:
    need_browser()
    held = {"guard": "max_leap", "partition": 2, "offset": 7, "reason": "too far", "seconds": 5.0,
            "remedy": "raise max_leap", "waits_for": ["b is at 3"]}  # fmt: skip
    document = status(
        replica("a"), replica("b", held=[held], state="joined", behind_output=5_000),
        replica("c", state="quarantined", why="its clock is ahead", breaches={"order": 3}),
        health="degraded", reasons=["c: in quarantine"], reason_kinds=["quarantined"],
        control_log={"read": 1},
    )  # fmt: skip
    with served(ServedWorker(document)) as found:
        yield found


def test_it_shows_what_is_wrong_in_words_and_acts_with_the_right_token_only(
    worker: ServedWorker, tmp_path: Path
) -> None:
    with Dashboard(tmp_path, worker.address) as dashboard, opened(dashboard) as page:
        text = page.inner_text("main")
        for each in ("a ◀ leads", "quarantined", "its clock is ahead", "raise max_leap",
                     "b is at 3", "breaches: 3"):  # fmt: skip
            assert each in text, each
        page.click('button[data-act="detach"][data-replica="a"]')
        page.wait_for_selector(".lm-confirm")
        assert "another replica takes over" in page.inner_text(".card")
        assert "read-only" in confirm(page)
        page.fill(".lm-token input", "not-the-token-of-these")
        assert "changes need the control token" in confirm(page)
        assert worker.asked == []
        page.fill(".lm-token input", TOKEN)
        assert "version 2" in confirm(page)
        ((path, body),) = worker.asked
        assert path == "replicas/a/detach"
        assert body["expects"] == 1
        kept = "JSON.stringify([localStorage, sessionStorage, document.cookie])"
        assert TOKEN not in page.evaluate(kept)
        page.reload()
        page.wait_for_selector("text=Enter token")  # it was in that page's memory only


@pytest.mark.full
def test_every_action_asks_what_its_form_says_and_shows_a_refusal(
    worker: ServedWorker, tmp_path: Path
) -> None:
    with Dashboard(tmp_path, worker.address) as dashboard, opened(dashboard) as page:
        page.click("text=Enter token")
        page.fill(".lm-token input", "wrong-wrong-wrong-wrong")
        assert "need the control token" in confirm(page)
        page.fill(".lm-token input", TOKEN)
        page.click(".lm-confirm")
        page.wait_for_selector("text=Forget token")
        for opener, fields, expected in (
            ('[data-act="quarantine"][data-replica="b"]', {"reason": "odd"},
             ("replicas/b/quarantine", {"reason": "odd"})),
            ('[data-act="release"][data-replica="c"]', {"joining_at": "42"},
             ("replicas/c/release", {"joining_at": 42})),
            (".lm-attach", {"name": "d", "topic": "t.d"},
             ("replicas/d/attach", {"topic": "t.d"})),
            (".lm-policy", {"insert": "quorum(2)", "stable": "lag(5)"},
             ("policy", {"insert": "quorum(2)", "adjust": "lazy", "stable": "lag(5)"})),
            ('[data-act="cutover"][data-replica="a"]', {"coming": "d", "topic": "t.d"},
             ("cutover/begin", {"coming": "d", "attach": {"topic": "t.d"}})),
        ):  # fmt: skip
            page.click(opener)
            page.wait_for_selector(".lm-confirm")
            if opener.startswith('[data-act="cutover"'):
                page.click(".lm-field-leaving")
                page.click('.q-menu .q-item:has-text("a")')
            for name, value in fields.items():
                page.fill(f".lm-field-{name} input", value)
            assert "version 2" in confirm(page), opener
            path, body = worker.asked.pop()
            assert path == expected[0]
            assert expected[1].items() <= body.items()
            page.click("text=Close")
            page.wait_for_selector(".lm-confirm", state="detached")
        worker.refuses = "version 5 came between"
        page.click('[data-act="detach"][data-replica="b"]')
        page.wait_for_selector(".lm-confirm")
        assert "refused: version 5 came between" in confirm(page)


@pytest.mark.full
def test_a_token_that_is_not_the_right_one_any_more_is_asked_for_again(
    worker: ServedWorker, tmp_path: Path
) -> None:
    with Dashboard(tmp_path, worker.address) as dashboard, opened(dashboard) as page:
        page.click("text=Enter token")
        page.fill(".lm-token input", TOKEN)
        page.click(".lm-confirm")
        page.wait_for_selector("text=Forget token")
        worker.token = "the-worker-was-started-again"
        page.click('[data-act="detach"][data-replica="a"]')
        page.wait_for_selector(".lm-confirm")
        assert not page.is_visible(".lm-token input"), "it is known"
        assert "changes need the control token" in confirm(page)
        page.wait_for_selector("text=Enter token")
        assert "read-only" in confirm(page)
        page.fill(".lm-token input", worker.token)
        assert "version 2" in confirm(page)
        page.wait_for_selector("text=Forget token")


@pytest.mark.full
def test_a_token_is_for_one_merge_and_sent_to_no_other_one_s_workers(
    worker: ServedWorker, tmp_path: Path
) -> None:
    other = ServedWorker(status(replica("z"), name="other", output=output(topic="elsewhere")))
    other.token = "that-of-the-other-merge"
    with (
        served(other),
        Dashboard(tmp_path, worker.address, other.address) as dashboard,
        opened(dashboard) as page,
    ):

        def show(merge: str, replica: str) -> None:
            page.click(".bar .q-select")
            page.click(f'.q-menu .q-item:has-text("{merge}")')
            page.wait_for_selector(f'tr[data-replica="{replica}"]')

        def detach(replica: str) -> str:
            page.click(f'[data-act="detach"][data-replica="{replica}"]')
            page.wait_for_selector(".lm-confirm")
            return confirm(page)

        def close() -> None:
            page.click("text=Close")
            page.wait_for_selector(".q-dialog", state="detached")

        show("other", "z")
        assert "read-only" in detach("z")
        page.fill(".lm-token input", other.token)
        assert "version 2" in confirm(page)
        close()
        page.wait_for_selector("text=Forget token")
        show("m", "a")
        page.wait_for_selector("text=Enter token")
        assert "read-only" in detach("a")
        assert worker.tokens == []
        page.fill(".lm-token input", TOKEN)
        assert "version 2" in confirm(page)
        close()
        show("other", "z")
        page.wait_for_selector("text=Forget token")
        assert "version 2" in detach("z"), "both are kept"
        assert worker.tokens == [f"Bearer {TOKEN}"]
        assert set(other.tokens) == {f"Bearer {other.token}"}


@pytest.mark.full
def test_a_merge_that_its_last_worker_left_for_another_one_leaves_the_page(
    worker: ServedWorker, tmp_path: Path
) -> None:
    other = ServedWorker(status(replica("z"), name="other", output=output(topic="elsewhere")))
    with (
        served(other),
        Dashboard(tmp_path, worker.address, other.address) as dashboard,
        opened(dashboard) as page,
    ):
        page.click(".bar .q-select")
        page.click('.q-menu .q-item:has-text("other")')
        page.wait_for_selector('tr[data-replica="z"]')
        other.status = worker.status
        page.wait_for_selector('tr[data-replica="a"]')
        page.wait_for_selector(".bar .q-select", state="hidden")
        assert page.locator('[data-panel="workers"] tbody tr').count() == 2


@pytest.mark.full
def test_a_gap_can_be_accepted_and_a_running_cutover_aborted(
    worker: ServedWorker, tmp_path: Path
) -> None:
    cutover = {"leaving": "a", "coming": "d", "state": "watching", "since": 4, "began": 3,
               "who": "anna", "why": None, "tasks": [{"partition": 0, "ready": False}]}  # fmt: skip
    waiting = {**task(0), "cutover": "d is behind"}
    worker.status = {
        **(worker.status or {}), "output": output(gap="[3, 9) until d joins"), "cutover": cutover,
        "tasks": [waiting],
    }  # fmt: skip
    with Dashboard(tmp_path, worker.address) as dashboard, opened(dashboard) as page:
        text = page.inner_text("main")
        assert "A gap holds the output" in text
        assert "0 of 1 tasks are ready" in text
        assert "Task 0 waits: d is behind" in text
        page.click('[data-act="accept-gap"]')
        page.wait_for_selector(".lm-confirm")
        assert page.input_value(".lm-field-input input") == "d"
        page.fill(".lm-token input", TOKEN)
        assert "is missing" in confirm(page)
        page.fill(".lm-field-until input", "9")
        assert "version 2" in confirm(page)
        path, body = worker.asked.pop()
        assert path == "accept-gap"
        assert (body["input"], body["until"]) == ("d", 9)
        page.click("text=Close")
        page.wait_for_selector(".lm-confirm", state="detached")
        page.click('[data-act="abort"]')
        page.wait_for_selector(".lm-confirm")
        assert "version 2" in confirm(page)
        assert worker.asked.pop()[0] == "cutover/abort"


@pytest.mark.full
def test_nothing_that_comes_from_a_worker_runs(worker: ServedWorker, tmp_path: Path) -> None:
    evil = "<script>window.owned = 1</script><img src=x onerror='window.owned = 1'>"
    worker.status = status(
        replica(evil, topic=evil, state="quarantined", why=evil, breaches={evil: 2}),
        name=evil, reasons=[evil], reason_kinds=["x"], output=output(topic=evil, leader=evil),
    )  # fmt: skip
    with Dashboard(tmp_path, worker.address) as dashboard, opened(dashboard) as page:
        page.click('button[data-act="evidence"]')
        page.wait_for_selector("text=What was found of")
        page.wait_for_timeout(3_000)
        assert page.evaluate("window.owned") is None
        assert "<script>window.owned" in page.inner_text("main")


@pytest.mark.full
def test_it_says_that_a_worker_is_away_and_recovers_by_itself(
    worker: ServedWorker, tmp_path: Path
) -> None:
    with Dashboard(tmp_path, worker.address) as dashboard, opened(dashboard) as page:
        known, worker.status = worker.status, None
        page.wait_for_selector("text=no worker answers")
        assert page.locator("tr[data-replica]").count() == 3, "what was known stays"
        worker.status = known
        page.wait_for_selector("text=somebody should look")
        page.wait_for_selector('tr[data-kind="worker"]:has-text("does not answer")')


@pytest.mark.full
def test_a_page_goes_on_by_itself_when_the_dashboard_is_started_again(
    worker: ServedWorker, tmp_path: Path
) -> None:
    port = free_port()
    with in_browser() as page:
        with Dashboard(tmp_path, worker.address, port=port) as dashboard:
            page.goto(dashboard.address)
            page.wait_for_selector("tr[data-replica]")
        page.wait_for_selector("text=Connection lost")
        worker.status = status(replica("a"), replica("new"))
        with Dashboard(tmp_path, worker.address, port=port):
            page.wait_for_selector('tr[data-replica="new"]')


@pytest.mark.full
def test_keyboard_focus_stays_while_the_page_is_brought_up_to_date(
    worker: ServedWorker, tmp_path: Path
) -> None:
    with (
        Dashboard(tmp_path, worker.address) as dashboard,
        opened(dashboard, dark=True, width=390) as page,
    ):
        focused = '[data-act="detach"][data-replica="b"]'
        page.focus(focused)
        replicas = [{**each, "stable_point": 999} for each in (worker.status or {})["replicas"]]
        worker.status = {**(worker.status or {}), "replicas": replicas}
        page.wait_for_selector('tr[data-replica="b"]:has-text("1970-01-01 00:00:00")')
        assert page.evaluate(f"document.activeElement.matches('{focused}')")
        page.keyboard.press("Enter")
        page.wait_for_selector(".lm-confirm")
        assert page.evaluate("document.body.classList.contains('body--dark')")
        colour = page.evaluate("getComputedStyle(document.querySelector('.lm-attach')).color")
        assert colour == "rgb(108, 184, 234)", "it can be read on dark ground"
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= 390, "nothing sticks out on a narrow screen"


@pytest.mark.full
def test_a_decision_is_made_with_the_keyboard_alone_on_a_narrow_screen(
    worker: ServedWorker, tmp_path: Path
) -> None:
    with Dashboard(tmp_path, worker.address) as dashboard, opened(dashboard, width=390) as page:

        def tab_to(wanted: str) -> None:
            for _ in range(100):
                page.keyboard.press("Tab")
                if page.evaluate(f"document.activeElement.matches('{wanted}')"):
                    break
            else:
                raise AssertionError(f"{wanted} cannot be reached by Tab")
            style = page.evaluate(
                "(({outlineStyle, boxShadow}) => ({outlineStyle, boxShadow}))"
                "(getComputedStyle(document.activeElement))"
            )
            assert style != {"outlineStyle": "none", "boxShadow": "none"}, "who sees where one is?"

        opener = '[data-act="detach"][data-replica="b"]'
        tab_to(opener)
        page.keyboard.press("Enter")
        page.wait_for_selector(".lm-confirm")
        card = page.locator(".q-dialog .card").bounding_box()
        assert card is not None
        assert (card["x"] >= 0, card["x"] + card["width"] <= 390) == (True, True)
        for _ in range(20):
            page.keyboard.press("Tab")
            if page.evaluate("!!document.activeElement.closest('.lm-token')"):
                break
        page.keyboard.type(TOKEN)
        tab_to(".lm-confirm")
        page.keyboard.press("Enter")
        page.wait_for_selector(".card [role=status]:has-text('version 2')")
        assert [path for path, _ in worker.asked] == ["replicas/b/detach"]
        page.keyboard.press("Escape")
        page.wait_for_selector(".q-dialog", state="detached")
        assert page.evaluate(f"document.activeElement.matches('{opener}')"), "it goes on there"


@pytest.mark.full
def test_elsewhere_it_wants_tls_and_a_login(worker: ServedWorker, tmp_path: Path) -> None:
    identity = Authority(tmp_path).sign("page")
    token = tmp_path / "login"
    token.write_text("sixteen-characters-or-more\n")
    options = ["--tls-certificate", str(identity.both), "--login-token-file", str(token)]
    with Dashboard(tmp_path, worker.address, *options) as dashboard:
        assert dashboard.address.startswith("https://")
        with in_browser() as page:
            page.goto(dashboard.address)
            page.fill("#token", "wrong")
            page.click("button")
            page.wait_for_selector("text=This is not the token")
            page.fill("#token", "sixteen-characters-or-more")
            page.click("button")
            page.wait_for_selector("tr[data-replica]")
            (cookie,) = page.context.cookies()
            assert (cookie["httpOnly"], cookie["secure"], cookie["sameSite"]) == (
                True, True, "Strict"
            )  # fmt: skip


@pytest.mark.full
def test_strangers_are_turned_away_and_no_get_changes_anything(
    worker: ServedWorker, tmp_path: Path
) -> None:
    with Dashboard(tmp_path, worker.address) as dashboard:
        with httpx.Client(base_url=dashboard.address, trust_env=False, timeout=30) as client:
            assert client.get("/", headers={"origin": "http://evil.example"}).status_code == 403
            assert client.get("/", headers={"host": "evil.example"}).status_code == 421
            upgrade = {"upgrade": "websocket", "connection": "Upgrade", "sec-websocket-version":
                       "13", "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
                       "origin": "http://evil.example"}  # fmt: skip
            socket = "/_nicegui_ws/socket.io/?EIO=4&transport=websocket"
            assert client.get(socket, headers=upgrade).status_code == 403
            assert client.post("/", json={}).status_code == 405
            assert client.delete("/").status_code == 405
            page = client.get("/")
            assert "frame-ancestors 'none'" in page.headers["content-security-policy"]
            assert page.status_code == 200
        assert worker.asked == []
