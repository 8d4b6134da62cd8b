"""Dialogs of the page: decisions with what will happen, the token, dry runs and evidence."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from nicegui import ui

from lmerge_service.config.topology import Topology
from lmerge_service.dashboard.actions import ACTIONS, Action, Field, ask, may_control, request_of
from lmerge_service.dashboard.dry_run import dry_run
from lmerge_service.dashboard.evidence import Place, evidence_of, is_about
from lmerge_service.dashboard.merged import ReplicaRow
from lmerge_service.dashboard.model import WatchedMerge
from lmerge_service.dashboard.panels import clock, replica_findings
from lmerge_service.dashboard.watching import Watched
from lmerge_service.errors import LMergeError
from lmerge_service.page import render

__all__ = ("Dialogs", "Session")

_READ_ONLY: Final = "Without the control token this page is read-only."


@dataclass(slots=True)
class Session:
    """Of one page in one browser; gone when it is left."""

    watched: Watched
    merge: tuple[str, str] | None = None
    """The key of the merge that is shown; None: the first."""
    tokens: dict[tuple[str, str], str] = field(default_factory=dict, repr=False)
    """By merge: one that its workers have accepted. It is sent to no other merge's workers."""
    seconds: float = 180.0
    """How much of the past charts show."""
    relative: bool = False

    def workers(self, merge: WatchedMerge) -> list[Mapping[str, Any]]:
        """Settings of HTTP clients of a merge's workers, those that answer first."""
        ours = [each for each in self.watched.targets if each.address in merge.addresses]
        ours.sort(key=lambda each: each.answer.status is None)
        return [each.settings for each in ours]


class Dialogs:
    """The dialogs of one page."""

    def __init__(self, session: Session, token_changed: Callable[[], None]):
        self._session, self._token_changed = session, token_changed

    def open(self, act: str, values: Mapping[str, str], merge: WatchedMerge) -> None:
        """The dialog for what was clicked; unknown ones are ignored."""
        replica = values.get("replica", "")
        if act == "evidence":
            self._evidence(replica, values.get("finding", ""), merge)
        elif act in ACTIONS:
            _Decision(self._session, self._token_changed, ACTIONS[act], replica, merge)

    def unlock(self, merge: WatchedMerge) -> None:
        """Asks for the token of a merge, or forgets it."""
        session = self._session
        if session.tokens.pop(merge.key, None) is not None:
            self._token_changed()
            return
        with ui.dialog(value=True) as dialog, ui.element("div").classes("card"):
            _title(f"The control token of {merge.key[0]}")
            _text("With it decisions can be made from this page. It stays in this page's memory.")
            entered = _token_field()
            result = ui.label().props("role=status")

            async def take() -> None:
                token = str(entered.value or "").strip()
                if not token or not token.isascii():
                    result.set_text("Enter the token: one line of ASCII.")
                    return
                found = await may_control(session.workers(merge), token)
                result.set_text(found.text)
                result.classes(replace="is-good" if found.good else "is-bad")
                if found.good:
                    session.tokens[merge.key] = token
                    self._token_changed()
                    dialog.close()

            _buttons(dialog, "Use it", take)

    def _evidence(self, replica: str, finding: str, merge: WatchedMerge) -> None:
        view, (_, topic) = merge.view, merge.key
        topology, _ = self._session.watched.topologies.get(topic, (None, ""))
        row = view and next((each for each in view.replicas if each.name == replica), None)
        if not row:
            return
        with ui.dialog(value=True) as dialog, ui.element("div").classes("card wide"):
            _title(f"What was found of {replica}")
            ui.html(
                render(
                    "dashboard/findings.html", row=row, finding=finding,
                    findings=replica_findings(row),
                ),
                sanitize=False,
            )  # fmt: skip
            holder = ui.element("div").props("role=status")
            with holder:
                if topology is None:
                    _text("Records are read from Kafka if the dashboard is started with TOPOLOGY.")
                else:
                    _text("Reading the latest dead letters and events …")
                    ui.timer(
                        0.05, lambda: _read_evidence(holder, row, finding, topology), once=True
                    )
            with ui.element("div").classes("bar"):
                ui.button("Close", on_click=dialog.close).props("no-caps flat")


async def _read_evidence(
    holder: ui.element, row: ReplicaRow, finding: str, topology: Topology
) -> None:
    try:
        found = await evidence_of(topology, row.name, list(_places(row)))
        html = render(
            "dashboard/evidence.html", finding=finding, clock=clock,
            asked=[each for each in found if is_about(each, finding)],
            others=[each for each in found if not is_about(each, finding)],
        )  # fmt: skip
    except LMergeError as error:
        html = render("dashboard/problem.html", text=str(error))
    holder.clear()
    with holder:
        ui.html(html, sanitize=False)


def _places(row: ReplicaRow) -> Iterator[Place]:
    """What a worker counts, and where it has found the last one."""
    if row.repeated_at:
        yield Place(
            "repeats", "the last record that its writer had written before", row.repeated_at
        )
    if row.contradicted_at:
        why = "the last record that is another one than was read under its number"
        yield Place("contradicted numbers", why, row.contradicted_at)


class _Decision:
    """A dialog about one decision."""

    def __init__(
        self, session: Session, token_changed: Callable[[], None], action: Action, replica: str,
        merge: WatchedMerge,
    ):  # fmt: skip
        self._session, self._changed = session, token_changed
        self._action, self._merge = action, merge
        self._fields: dict[str, Any] = {}
        with ui.dialog(value=True) as self._dialog, ui.element("div").classes("card"):
            _title(action.title)
            for each in action.fields:
                self._fields[each.name] = self._field(each, replica)
            self._happens = ui.element("div").classes("notice warn").style("margin-top: .6rem")
            self._locked = ui.element("div").style("margin-top: .6rem")
            with self._locked:
                _text(_READ_ONLY)
                self._token = _token_field()
            self._locked.set_visibility(merge.key not in session.tokens)
            self._report = ui.html("", tag="div", sanitize=False)
            self._result = ui.label().props("role=status")
            self._buttons()
        self._explain()

    def _field(self, each: Field, replica: str) -> Any:
        view = self._merge.view
        assert view is not None
        if each.kind == "replica":
            names = [row.name for row in view.replicas]
            given = replica if replica in names else None
            return _named(ui.select(names, label=each.label, value=given), each, self._explain)
        if each.kind == "choice":
            given = view.policy.get(each.name)
            choices = list(each.choices)
            default = given if given in choices else choices[0]
            return _named(ui.select(choices, label=each.label, value=default), each, self._explain)
        default = view.policy.get(each.name, each.default)
        if each.name == "input" and view.gap:
            default = view.gap.rpartition(" until ")[2].removesuffix(" joins")
        return _named(ui.input(each.label, value=str(default)), each, self._explain)

    def _buttons(self) -> None:
        more: dict[str, Any] = {}
        if self._action.path == "/v1/cutover/begin":
            more["Dry run"] = self._dry_run
        self._confirm = _buttons(self._dialog, "Confirm", self._decide, more)

    def _values(self) -> dict[str, str]:
        return {name: str(field.value or "") for name, field in self._fields.items()}

    def _explain(self, *_: object) -> None:
        if not hasattr(self, "_happens") or self._merge.view is None:
            return
        self._happens.clear()
        with self._happens:
            ui.label("What will happen").style("font-weight: 650")
            for line in self._action.happens(self._merge.view, self._values()):
                ui.label(line)

    def _show(self, text: str, *, good: bool) -> None:
        self._result.set_text(text)
        self._result.classes(replace="is-good" if good else "is-bad")

    async def _decide(self) -> None:
        session, view, key = self._session, self._merge.view, self._merge.key
        token = session.tokens.get(key) or str(self._token.value or "").strip()
        if not token or not token.isascii():
            self._show(f"{_READ_ONLY} Enter it above.", good=False)
            return
        version = None if view is None else view.version
        try:
            path, body = request_of(self._action, self._values(), version)
        except ValueError as error:
            self._show(str(error), good=False)
            return
        self._confirm.disable()
        found = await ask(session.workers(self._merge), token, path, body, session.watched.who)
        self._show(found.text, good=found.good)
        if found.good:
            session.tokens[key] = token
        elif found.denied:
            session.tokens.pop(key, None)
        self._locked.set_visibility(key not in session.tokens)
        self._changed()
        if found.good:
            self._confirm.set_visibility(False)
        else:
            self._confirm.enable()

    async def _dry_run(self) -> None:
        values = self._values()
        known = self._session.watched.topologies.get(self._merge.key[1])
        if known is None:
            self._show("A dry run needs the file: `lmerge dashboard TOPOLOGY.yaml`.", good=False)
            return
        if not values["coming"]:
            self._show("Name who takes its place.", good=False)
            return
        self._show("Comparing every event of both; nothing is decided …", good=True)
        good, report = await dry_run(known[1], values["coming"], values["topic"], values["watch"])
        self._report.set_content(render("dashboard/report.html", text=report))
        self._show("Nothing would differ." if good else "Look at the report first.", good=good)


# --- parts ----------------------------------------------------------------------------------------


def _title(text: str) -> None:
    ui.label(text).props("role=heading aria-level=2").style("font-weight: 700; font-size: 1.1rem")


def _text(text: str) -> None:
    ui.label(text).classes("dim")


def _token_field() -> Any:
    field = ui.input("Control token", password=True)
    field.props("outlined dense autocomplete=off").classes("lm-token").style("width: 100%")
    return field


def _named(element: Any, each: Field, changed: Callable[..., None]) -> Any:
    element.props("outlined dense").classes(f"lm-field-{each.name}")
    element.style("width: 100%; margin-top: .4rem")
    element.on_value_change(changed)
    return element


def _buttons(
    dialog: Any,
    label: str,
    do: Callable[[], Any],
    more: Mapping[str, Callable[[], Any]] | None = None,
) -> Any:
    with ui.element("div").classes("bar").style("margin-top: .8rem; justify-content: flex-end"):
        ui.button("Close", on_click=dialog.close).props("no-caps flat")
        for name, other in (more or {}).items():
            ui.button(name, on_click=other).props("no-caps outline")
        return ui.button(label, on_click=do).props("no-caps unelevated").classes("lm-confirm")
