"""A worker's status as people see it: headline, reasons, a table of replicas, or one line.

Documents are read leniently: a worker of another version may report more, or less. What it does not
report is "?", which is not 0. Times are dates where the topology has a `time_unit`.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from rich.table import Table
from rich.text import Text

from lmerge_service.text import moment, printable, shortened, span

__all__ = (
    "UNKNOWN",
    "Document",
    "borderless",
    "cutover_of",
    "date_of",
    "headline",
    "notes",
    "progress",
    "reasons",
    "replicas_table",
    "summary",
    "word",
)

Document: TypeAlias = Mapping[str, Any]
Rates: TypeAlias = Mapping[str, float | None]

UNKNOWN: Final = "?"
_RIGHT: Final = ("stable point", "behind", "lag", "first", "breaches", "per s")
_COLUMNS: Final = ("replica", "state", *_RIGHT, "confirmed")
_STYLES: Final = {
    "joined": "green",
    "joining": "cyan",
    "paused": "yellow",
    "excluded": "red",
    "quarantined": "bold red",
    "leaving": "dim",
    "gone": "dim",
    "detached": "dim",
}


def headline(status: Document) -> Text:
    """What merges and how it is; below, how far the output has come."""
    output = _part(status, "output")
    health = str(status.get("health", UNKNOWN))
    policies = ", ".join(map(str, _part(output, "policy").values())) or UNKNOWN
    line = Text(f"{word(status.get('name'))}: {word(status.get('state'))}, ", style="bold")
    line.append(health, style="bold green" if health == "ok" else "bold red")
    line.append(
        f"\n{word(output.get('topic'))} is at {_stable(output, status)}, led by "
        f"{word(output.get('leader') or 'nobody')}, "
        f"case {word(output.get('case'))}, policy {word(policies)}",
        style="not bold",
    )
    if output.get("incarnation"):
        since = output.get("correct_from")
        since = "the beginning" if since is None else f"{word(since)} on"
        line.append(
            f"\nincarnation {word(output.get('incarnation'))}, correct from {since}",
            style="not bold",
        )
    if (gap := output.get("gap")) is not None:
        line.append(f"\na gap: {word(gap)}", style="bold red")
    if isinstance(since := output.get("leader_since"), int | float):
        line.append(
            f"\nthe last change of leader was at {date_of(int(since * 1000))}, from "
            f"{word(output.get('leader_before') or 'nobody')}: "
            f"{shortened(word(output.get('leader_why')))}",
            style="not bold",
        )
    return line


def reasons(status: Document) -> list[Text]:
    """Why the health is not ok."""
    return [Text(f"• {word(each)}", style="red") for each in _list(status, "reasons")]


def cutover_of(status: Document) -> list[Text]:
    """How the latest cutover stands, and what tasks of this worker still wait for."""
    found = _part(status, "cutover")
    if not found:
        return []
    state, tasks = word(found.get("state")), found.get("tasks", ())
    line = f"cutover {word(found.get('leaving'))} → {word(found.get('coming'))}: {state}"
    runs = state in {"joining", "watching"}
    if runs:
        ready = sum(bool(each.get("ready")) for each in tasks)
        line += f", {ready} of {len(tasks)} tasks are ready"
    why = f": {shortened(word(found['why']))}" if found.get("why") else ""
    lines = [f"{line} (version {word(found.get('since'))}){why}"]
    waiting = [each for each in _list(status, "tasks") if runs and each.get("cutover")]
    lines += [f"  task {word(each.get('partition'))}: {word(each['cutover'])}" for each in waiting]
    return [Text(each, style="red" if state == "aborted" else "cyan") for each in lines]


def replicas_table(
    status: Document, decided: Document | None = None, rates: Rates | None = None
) -> Table:
    """A row for each replica that the worker sees, or that anything was decided about.

    `rates` adds a column of elements a second by replica; None is unknown.
    """
    columns = [each for each in _COLUMNS if each != "per s" or rates is not None]
    table = borderless(*columns, right=_RIGHT)
    for column in table.columns:
        dated = column.header in {"stable point", "confirmed"}
        column.no_wrap = not dated and column.header not in {"replica", "state"}
        column.min_width = len("2013-01-01") if dated else None
    for name, seen, known in _rows(status, decided):
        cells = _cells(name, seen, known, status)
        cells["per s"] = Text(_number((rates or {}).get(name), ".0f"))
        table.add_row(*(cells[each] for each in columns))
    return table


def borderless(*headings: str, right: Collection[str] = ()) -> Table:
    """A table of text without lines; `right`: columns that are justified to the right."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in headings:
        table.add_column(name, justify="right" if name in right else "left", overflow="fold")
    return table


def notes(status: Document, decided: Document | None = None) -> list[Text]:
    """Of each replica, why it is as it is, where the reasons of the worker's health do not have it;
    and how many records of it are not merged since it was detached."""
    found = []
    for name, seen, known in _rows(status, decided):
        why = word(seen.get("why") or known.get("reason") or "")
        if any(why in word(each) for each in _list(status, "reasons")):
            why = ""
        since = _part(status, "detached").get(name) if known.get("state") == "detached" else 0
        records = f"{since} records since" if since else ""
        if text := "; ".join(filter(None, (why, records))):
            found.append(Text(f"{printable(name)}: {shortened(text)}"))
    return found


def _rows(status: Document, decided: Document | None) -> Iterator[tuple[str, Document, Document]]:
    seen = {word(each.get("name")): each for each in _list(status, "replicas")}
    known = {word(each.get("name")): each for each in _list(decided or {}, "replicas")}
    for name in dict.fromkeys([*seen, *known]):
        yield name, seen.get(name, {}), known.get(name, {})


def _cells(name: str, seen: Document, known: Document, status: Document) -> dict[str, Text]:
    desired = known.get("state")
    state = desired if desired in {"quarantined", "detached"} else _state(seen)
    still = seen.get("liveness") in {"not progressing", "silent"} and state == "joined"
    incarnation = f" #{seen['incarnation']}" if seen.get("incarnation") else ""
    leads = " ◀" if name == _part(status, "output").get("leader") else ""
    doubtful = seen.get("disagrees") or seen.get("unconfirmed")
    breaches = seen.get("breaches")
    counted = sum(breaches.values()) if isinstance(breaches, Mapping) else None
    return {
        "replica": Text(printable(name) + incarnation + leads),
        "state": Text(
            printable(state) + (f", {seen['liveness']}" if still else ""), _STYLES.get(state, "")
        ),
        "stable point": Text(_stable(seen, status)),
        "behind": Text(_behind(seen, status)),
        "lag": Text(_number(seen.get("lag_records"))),
        "first": Text(_number(seen.get("share_first"), ".0%")),
        "breaches": Text(_number(counted)),
        "confirmed": Text(_confirmed(seen, status), "red" if doubtful else ""),
    }


def _state(seen: Document) -> str:
    state = str(seen.get("state", UNKNOWN))
    return "ended" if seen.get("ended") and state == "joined" else state


def _confirmed(seen: Document, status: Document) -> str:
    """Up to when a replica is known to agree with the output, and whether it is known
    not to."""
    if "confirmed" not in seen:
        return UNKNOWN
    doubt = ""
    if seen.get("disagrees"):
        doubt = "disagrees, "
    elif seen.get("unconfirmed"):
        doubt = f"{_number(seen.get('left_out'))} left out, "
    until = _at(seen.get("confirmed"), status)
    if seen.get("confirmed_to_the_end"):
        until = "infinity"
    elif until == UNKNOWN:
        return f"{doubt}nowhere" if doubt else "not yet"
    return f"{doubt}to {until}"


# --- one line, for logs ---------------------------------------------------------------------------


def summary(status: Document) -> str:
    """All that makes a change: who leads, how each replica is, and what is wrong."""
    replicas = ", ".join(
        f"{word(each.get('name'))} {_state(each)}" for each in _list(status, "replicas")
    )
    text = (
        f"{status.get('state', UNKNOWN)}, {status.get('health', UNKNOWN)}; led by "
        f"{_part(status, 'output').get('leader') or 'nobody'}; {replicas or 'no replicas'}"
    )
    if cutover := _part(status, "cutover"):
        leaving, coming, state = (word(cutover.get(e)) for e in ("leaving", "coming", "state"))
        text += f"; cutover {leaving} → {coming} {state}"
    why = "; ".join(map(str, _list(status, "reasons")))
    return printable(f"{text}: {why}" if why else text)


def progress(status: Document) -> str:
    """How far the output and each replica are: stable points, and records that wait."""
    output = _part(status, "output")
    replicas = "; ".join(_of_replica(each, status) for each in _list(status, "replicas"))
    return printable(
        f"{output.get('topic', UNKNOWN)} is stable to {_stable(output, status)}, led by "
        f"{output.get('leader') or 'nobody'}; {replicas or 'no replicas'}"
    )


def _of_replica(seen: Document, status: Document) -> str:
    known = {
        " to": _stable(seen, status),
        ", lag": _number(seen.get("lag_records")),
        ", first": _number(seen.get("share_first"), ".0%"),
    }
    parts = [f"{name} {value}" for name, value in known.items() if value != UNKNOWN]
    return f"{word(seen.get('name'))} {_state(seen)}{''.join(parts)}"


# --- values ---------------------------------------------------------------------------------------


def word(value: object) -> str:
    """A value of a document."""
    return UNKNOWN if value is None else printable(str(value))


def date_of(milliseconds: object) -> str:
    """When something was done, by the clock."""
    return moment(milliseconds, "ms") if isinstance(milliseconds, int) else UNKNOWN


def _part(document: Document, name: str) -> Document:
    found = document.get(name)
    return found if isinstance(found, Mapping) else {}


def _list(document: Document, name: str) -> Sequence[Any]:
    found = document.get(name)
    return found if isinstance(found, Sequence) else ()


def _number(value: object, form: str = ",") -> str:
    return format(value, form) if isinstance(value, int | float) else UNKNOWN


def _at(time: object, status: Document) -> str:
    return moment(time, status.get("time_unit")) if isinstance(time, int) else UNKNOWN


def _stable(document: Document, status: Document) -> str:
    return "infinity" if document.get("ended") else _at(document.get("stable_point"), status)


def _behind(seen: Document, status: Document) -> str:
    behind = seen.get("behind_output")
    return span(behind, status.get("time_unit")) if isinstance(behind, int) else UNKNOWN
