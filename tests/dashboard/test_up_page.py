"""The dashboard of `lmerge up` in a browser: several merges, one of them with TLS and tokens of its
own."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.certificates import Authority
from tests.dashboard.browser import confirm, in_browser, need_browser
from tests.dashboard.real import write_stream
from tests.local.running import Upped

TopicName = Callable[..., str]

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]


def topology(
    folder: Path, name: str, bootstrap: str, stream: Path, *, http: str = "", merges: str = ""
) -> Path:
    """Of two replicas that are published all the time."""
    published = "".join(
        f"    - {{name: {each}, command: [lmerge, publish, {stream}, {name}.{each}, --rate, 30]}}\n"
        for each in "ab"
    )
    path = folder / f"{name}.yaml"
    path.write_text(
        f"name: {name}\nkafka: {{bootstrap: '{bootstrap}'}}\noutput: {{topic: {name}.out}}\n"
        f"replicas:\n  - {{name: a, topic: {name}.a}}\n  - {{name: b, topic: {name}.b}}\n"
        f"guards: {{max_leap: 1000000000}}\nhttp: {{port: 0{http}}}\n"
        f"up:\n  merges: [{merges}]\n  processes:\n{published}"
    )
    return path


def test_one_page_has_all_merges_also_those_with_tls_and_tokens_of_their_own(
    tmp_path: Path, bootstrap: str, topic_name: TopicName
) -> None:
    need_browser()
    authority, stream = Authority(tmp_path), write_stream(tmp_path / "stream")
    first, second = topic_name("first"), topic_name("second")
    secrets = {"read": "who-may-read-the-second", "control": "who-may-decide-the-second"}
    for name, secret in secrets.items():
        (tmp_path / name).write_text(secret)
    tokens = "".join(f", {name}_token: {{file: {name}}}" for name in secrets)
    tls = f", tls: {{certificate: '{authority.sign('worker').both}'}}"
    topology(tmp_path, second, bootstrap, stream, http=tls + tokens)
    path = topology(tmp_path, first, bootstrap, stream, merges=f"{second}.yaml")
    with (
        Upped(tmp_path, path, bootstrap, options=["--dashboard"]) as up,
        in_browser() as page,
    ):

        def show(merge: str) -> None:
            page.click(".bar .q-select")
            page.click(f'.q-menu .q-item:has-text("{merge}")')
            page.wait_for_selector(f'h1:has-text("{merge}")')
            page.wait_for_selector('tr[data-replica="a"]:has-text("joined")')

        def detach(token: str) -> str:
            page.click('[data-act="detach"][data-replica="a"]')
            page.wait_for_selector(".lm-confirm")
            page.fill(".lm-token input", token)
            answer = confirm(page)
            page.click("text=Close")
            page.wait_for_selector(".q-dialog", state="detached")
            return answer

        up.until("both", lambda: all(up.status(name) for name in (first, second)), 200)
        page.goto(up.shown["dashboard"])
        page.wait_for_selector(f'h1:has-text("{first}")')
        of_the_run = (tmp_path / "home" / "up" / first / "token").read_text()
        show(second)
        assert "changes need the control token" in detach(of_the_run)
        assert detach(secrets["control"]).startswith("version 2")
        page.wait_for_selector('tr[data-replica="a"]', state="detached")
        show(first)
        assert "changes need the control token" in detach(secrets["control"])
        assert detach(of_the_run).startswith("version 2")
