"""The page: panels and charts that are brought up to date, and dialogs for what people do.

Theory
    NiceGUI keeps an object for each browser that looks, and talks to it by a web socket. Panels are
    HTML that is made once for all (`panels`) and sent when it has changed; the browser changes the
    nodes that differ, so that focus and scrolling stay. A token for decisions is in that object and
    nowhere else: it is gone when the page is left or loaded anew.

Cost
    Panels are made at most once for each answer of a worker, however many look, and only while
    somebody does. A page is brought up to date each second, its charts every two; with more than 50
    replicas, more seldom.
"""

import json
import time
from typing import Any, Final

from fastapi import FastAPI
from nicegui import ui
from nicegui.events import GenericEventArguments
from starlette.types import ASGIApp

from lmerge_service.config.http import Http
from lmerge_service.dashboard import charts
from lmerge_service.dashboard.dialogs import Dialogs, Session
from lmerge_service.dashboard.door import Door
from lmerge_service.dashboard.history import SPAN_SECONDS
from lmerge_service.dashboard.model import WatchedMerge, labelled
from lmerge_service.dashboard.panels import panels
from lmerge_service.dashboard.watching import Watched
from lmerge_service.page import render

__all__ = ("application",)

_RANGES: Final = {60.0: "1 min", 180.0: "3 min", SPAN_SECONDS: "10 min"}
_KINDS: Final = ("leader", "replica", "worker", "reason", "cutover", "decision", "refused")
_ROWS_A_SECOND: Final = 50
_CHARTS_EVERY: Final = 2.0
_LEAST_RANGE: Final = 30.0
"""Seconds; while less than the range is known, charts show what there is."""


def application(watched: Watched, where: Http) -> ASGIApp:
    """The page behind its door."""
    app = FastAPI(title="lmerge dashboard", docs_url=None, redoc_url=None, openapi_url=None)
    rendered = _Rendered(watched)

    @ui.page("/", title="lmerge")
    def page() -> None:
        _Page(watched, rendered)

    ui.run_with(
        app, title="lmerge", dark=None, language="en-US", tailwind=False,
        show_welcome_message=False, reconnect_timeout=30.0, favicon="⑂",
    )  # fmt: skip
    return Door(app, where)


class _Rendered:
    """The panels of each merge, made once for each state of the model."""

    def __init__(self, watched: Watched):
        self._watched = watched
        self._made: dict[tuple[str, str], tuple[int, dict[str, str]]] = {}

    def of(self, merge: WatchedMerge) -> dict[str, str]:
        model = self._watched.model
        at, made = self._made.get(merge.key, (-1, {}))
        if at != model.generation:
            made = panels(merge, model.queries, model.unknown)
            self._made[merge.key] = model.generation, made
        return made


class _Page:
    """What one browser sees."""

    def __init__(self, watched: Watched, rendered: _Rendered):
        self._watched, self._rendered = watched, rendered
        self._session = Session(watched)
        self._sent: dict[str, str] = {}
        self._generation = -1
        self._next_charts = self._next_panels = 0.0
        self._client = ui.context.client
        self._charts: dict[str, ui.echart] = {}
        ui.add_head_html(render("dashboard/head.html"))
        ui.colors(primary="#0072b2", negative="#a8370a", positive="#006b4f")
        self._dark = ui.dark_mode(value=None)
        self._dialogs = Dialogs(self._session, self._show_token)
        self._build()
        ui.on("lm-act", self._act)
        ui.on("lm-dark", self._theme)
        ui.timer(0.5, self._refresh)

    # --- what there is ---

    def _build(self) -> None:
        with ui.element("main").classes("lm").props("id=main"):
            self._bar()
            with _section("How it is"):
                _panel("headline")
            with ui.element("div").classes("two"):
                with _section("The merge"):
                    _panel("shape").classes("shape")
                with ui.element("div").style("display: grid; gap: .9rem; min-width: 0"):
                    with _section("What needs attention"):
                        _panel("attention")
                    with _section("Cutover"):
                        _panel("cutover")
            with _section("The race: up to where each replica is final, and who leads"):
                self._chart_bar()
                self._charts["race"] = ui.echart({}).classes("race")
                with ui.element("div").classes("four"):
                    for name in ("rate", "latency", "live", "memory"):
                        self._charts[name] = ui.echart({}).classes("number")
            with _section("Replicas"):
                _panel("replicas")
            with ui.element("div").classes("two"):
                with _section("Decisions and events"):
                    self._log_bar()
                    _panel("log").classes("log").props("tabindex=0")
                with _section("Workers"):
                    _panel("workers")
            self._queries = _section("Queries that are replicas")
            with self._queries:
                _panel("queries")
            self._queries.set_visibility(False)

    def _bar(self) -> None:
        with ui.element("div").classes("bar"):
            ui.label("LMerge").style("font-weight: 700; font-size: 1.1rem")
            self._merges = ui.select([], label="merge", on_change=self._pick_merge)
            self._merges.props("dense outlined options-dense").style("min-width: 12rem")
            ui.element("div").classes("grow")
            self._token = ui.button("Enter token", icon="lock", on_click=self._unlock)
            self._token.props("flat dense no-caps")
            for act, label in (("attach", "Attach"), ("cutover", "Cut over"), ("policy", "Policy")):
                button = ui.button(label, on_click=lambda _, act=act: self._open(act, {}))
                button.props("outline dense no-caps").classes(f"lm-{act}")
            theme = ui.button(icon="contrast", on_click=lambda: self._set_dark(not self._is_dark))
            theme.props('flat dense round aria-label="light or dark"')

    def _chart_bar(self) -> None:
        with ui.element("div").classes("bar"):
            ranges = ui.toggle(_RANGES, value=180.0, on_change=self._pick_range)
            ranges.props('dense no-caps unelevated aria-label="time range"')
            how = {False: "stable points", True: "distance to the furthest"}
            shown = ui.toggle(how, value=False, on_change=self._pick_relative)
            shown.props('dense no-caps unelevated aria-label="what is drawn"')

    def _log_bar(self) -> None:
        options = "".join(f"<option>{kind}</option>" for kind in _KINDS)
        ui.html(
            '<div class="bar"><label>kind <select id="log-kind" '
            "onchange=\"lm.filter(this.value, document.getElementById('log-words').value)\">"
            f'<option value="">all</option>{options}</select></label>'
            '<label>with <input id="log-words" type="search" '
            "oninput=\"lm.filter(document.getElementById('log-kind').value, this.value)\">"
            "</label></div>",
            sanitize=False,
        )

    # --- what people do ---

    def _act(self, event: GenericEventArguments) -> None:
        given = event.args if isinstance(event.args, dict) else {}
        values = {str(k): str(v) for k, v in given.items()}
        self._open(values.get("act", ""), values)

    def _open(self, act: str, values: dict[str, str]) -> None:
        merge = self._merge()
        if merge is not None and merge.view is not None:
            self._dialogs.open(act, values, merge)

    def _unlock(self) -> None:
        if (merge := self._merge()) is not None:
            self._dialogs.unlock(merge)

    def _pick_merge(self, event: Any) -> None:
        picked = labelled(self._watched.model.merges).get(event.value)
        if picked is not None:
            self._session.merge = picked.key
        self._show_token()
        self._again()

    def _pick_range(self, event: Any) -> None:
        self._session.seconds = float(event.value)
        self._draw()

    def _pick_relative(self, event: Any) -> None:
        self._session.relative = bool(event.value)
        self._draw()

    @property
    def _is_dark(self) -> bool:
        return bool(self._dark.value)

    def _theme(self, event: GenericEventArguments) -> None:
        if self._dark.value is None:
            self._set_dark(bool(event.args))

    def _set_dark(self, dark: bool) -> None:
        self._dark.set_value(dark)
        self._draw()

    def _show_token(self) -> None:
        merge = self._merge()
        known = merge is not None and merge.key in self._session.tokens
        self._token.set_text("Forget token" if known else "Enter token")
        self._token.props(f"icon={'lock_open' if known else 'lock'}")

    # --- what is new ---

    def _merge(self) -> WatchedMerge | None:
        """The one that is shown: the one that was picked, else the first."""
        merges = self._watched.model.merges
        first = next(iter(merges.values()), None)
        return first if self._session.merge is None else merges.get(self._session.merge, first)

    def _again(self) -> None:
        self._sent.clear()
        self._generation, self._next_panels, self._next_charts = -1, 0.0, 0.0
        self._refresh()

    def _refresh(self) -> None:
        """Brings the page up to date with the model."""
        model, now = self._watched.model, time.monotonic()
        if model.generation == self._generation or now < self._next_panels:
            return
        self._generation = model.generation
        merge, labels = self._merge(), labelled(model.merges)
        if self._merges.options != list(labels):
            shown = next((label for label, each in labels.items() if each is merge), None)
            self._merges.set_options(list(labels), value=shown)
            self._merges.set_visibility(len(labels) > 1)
        if merge is None:
            self._send({"headline": render("dashboard/nothing.html", unknown=model.unknown)})
            return
        assert merge.view is not None
        rows = len(merge.view.replicas)
        self._next_panels = now + max(0.9, rows / _ROWS_A_SECOND)
        self._send(self._rendered.of(merge))
        self._queries.set_visibility(bool(model.queries))
        if now >= self._next_charts:
            self._draw()

    def _send(self, made: dict[str, str]) -> None:
        fresh = {name: html for name, html in made.items() if self._sent.get(name) != html}
        if fresh:
            self._sent |= fresh
            self._client.run_javascript(f"lm.show({json.dumps(fresh)})")

    def _draw(self) -> None:
        merge = self._merge()
        if merge is None or merge.view is None or (latest := merge.history.latest()) is None:
            return
        self._next_charts = time.monotonic() + _CHARTS_EVERY
        until = max(latest.at, time.time())
        for name, options in _options(merge, self._session, until, self._is_dark).items():
            chart = self._charts[name]
            chart.options.clear()
            chart.options.update(options)
            chart.update()


def _options(
    merge: WatchedMerge, session: Session, until: float, dark: bool
) -> dict[str, dict[str, Any]]:
    """Of all charts, by name."""
    view, history = merge.view, merge.history
    assert view is not None
    oldest = history.oldest()
    young = until if oldest is None else oldest.at
    since = max(until - session.seconds, min(young, until - _LEAST_RANGE))
    most = charts.MOST_POINTS

    def points(**names: str) -> dict[str, Any]:
        return {
            label.replace("_", " "): history.points(name, since, most)
            for label, name in names.items()
        }

    memory = {
        name.removeprefix("memory ").rpartition("/")[2]: history.points(name, since, most)
        for name in history.names(since)
        if name.startswith("memory ")
    }
    common: dict[str, Any] = {"since": since, "until": until, "dark": dark}
    return {
        "race": charts.race(view, history, since, until, relative=session.relative, dark=dark),
        "rate": charts.numbers("output", points(output="rate"), unit="elements/s", **common),
        "latency": charts.numbers(
            "added latency",
            points(p50="commit p50", p99="commit p99", commit_under_way="commit"),
            unit="ms",
            **common,
        ),
        "live": charts.numbers("live events", points(live="live events"), unit="", **common),
        "memory": charts.numbers("memory", memory, unit="MB", scale=1e-6, **common),
    }


def _section(title: str) -> ui.element:
    section = ui.element("section").props(f'aria-label="{title}"')
    with section:
        ui.html(title, tag="h2", sanitize=False)
    return section


def _panel(name: str) -> ui.element:
    return ui.element("div").props(f"data-panel={name}")
