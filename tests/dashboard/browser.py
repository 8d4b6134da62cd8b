"""A real browser, and a dashboard as a process: what people see and do."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cli.conftest import LMERGE, environment

if TYPE_CHECKING:
    from playwright.sync_api import Page

__all__ = ("CHROMIUM", "SECONDS", "Dashboard", "confirm", "in_browser", "need_browser", "opened")

CHROMIUM = next((path for name in ("chromium", "chromium-browser", "google-chrome")
                 if (path := shutil.which(name))), None)  # fmt: skip
SECONDS = 60_000
"""How long anything may take on a busy machine, in Playwright's milliseconds."""


def need_browser() -> str:
    """Where one is; a test without is skipped with one line, and fails in CI."""
    if CHROMIUM is None:
        if os.environ.get("LMERGE_REQUIRE_BROWSER"):
            pytest.fail("there is no Chromium: .ci/run installs it")
        pytest.skip("no Chromium: `apt-get install chromium`")
    return CHROMIUM


class Dashboard:
    """`lmerge dashboard ARGUMENTS` as a process, at any free port by default; use as `with`."""

    def __init__(self, folder: Path, *arguments: str, port: int = 0):
        self._command = [*LMERGE, "dashboard", *arguments, "--port", str(port)]
        self._log = folder / "dashboard.log"
        self.address = ""

    def __enter__(self) -> "Dashboard":
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                self._command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment()
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = re.search(r"https?://\S+", line)
        assert found, f"{line!r}: {self._log.read_text()}"
        self.address = found[0]
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        assert self.process.stdout is not None
        self.process.stdout.close()
        assert self.process.wait(60) == 0, self._log.read_text()
        assert "Traceback" not in self._log.read_text()


@contextmanager
def in_browser(*, dark: bool = False, width: int = 1300) -> Iterator["Page"]:
    """An empty page; at the end nothing may have been asked of another host, and no script may
    have failed."""
    from playwright.sync_api import sync_playwright

    chromium = need_browser()
    asked: list[str] = []
    failed: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        context = browser.new_context(
            viewport={"width": width, "height": 900}, ignore_https_errors=True,
            color_scheme="dark" if dark else "light",
        )  # fmt: skip
        context.set_default_timeout(SECONDS)
        page = context.new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: failed.append(str(error)))
        yield page
        browser.close()
    ours = re.compile(r"(https?|wss?)://(127\.0\.0\.1|localhost):|data:|blob:|about:")
    assert [url for url in asked if not ours.match(url)] == []
    assert failed == []


@contextmanager
def opened(dashboard: Dashboard, *, dark: bool = False, width: int = 1300) -> Iterator["Page"]:
    """The dashboard's page, with its replicas."""
    with in_browser(dark=dark, width=width) as page:
        page.goto(dashboard.address)
        page.wait_for_selector("tr[data-replica]")
        yield page


def confirm(page: "Page") -> str:
    """Presses Confirm; what is reported."""
    report = page.locator(".card [role=status]")
    before = report.last.inner_text()
    page.click(".lm-confirm")
    page.wait_for_function(
        "before => { const all = document.querySelectorAll('.card [role=status]');"
        " return all.length && all[all.length - 1].innerText !== before }",
        arg=before,
    )
    return report.last.inner_text()
