"""A worker's documents as people see them: tables of replicas, of decisions, and what is wrong.

Documents are read leniently: a worker of another version may report more, or less. What it does not
report is "?", which is not 0.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Literal, TypeAlias

from rich.table import Table
from rich.text import Text

from lmerge_service.cli.words import printable, shortened

__all__ = ("Document", "cutover_of", "decisions_table", "headline", "reasons", "replicas_table")

Document: TypeAlias = Mapping[str, Any]
Rates: TypeAlias = Mapping[str, float | None]

UNKNOWN: Final = "?"
_Justify: TypeAlias = Literal["left", "right"]
_COLUMNS: Final[tuple[tuple[str, _Justify], ...]] = (
    ("replica", "left"),
    ("state", "left"),
    ("stable point", "right"),
    ("behind", "right"),
    ("lag", "right"),
    ("first", "right"),
    ("breaches", "right"),
    ("why", "left"),
)
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
    policy = _part(output, "policy")
    policies = ", ".join(f"{value}" for value in policy.values()) or UNKNOWN
    line = Text(f"{_word(status.get('name'))}: {_word(status.get('state'))}, ", style="bold")
    line.append(health, style="bold green" if health == "ok" else "bold red")
    line.append(
        f"\n{_word(output.get('topic'))} is at {_stable(output)}, led by "
        f"{_word(output.get('leader') or 'nobody')}, "
        f"case {_word(output.get('case'))}, policy {_word(policies)}",
        style="not bold",
    )
    if (since := output.get("leader_since")) is not None:
        moment, before = _moment(int(since * 1000)), output.get("leader_before") or "nobody"
        line.append(
            f"\nthe last change of leader was at {moment}, from {_word(before)}: "
            f"{shortened(_word(output.get('leader_why')))}",
            style="not bold",
        )
    return line


def reasons(status: Document) -> list[Text]:
    """Why the health is not ok."""
    return [Text(f"• {_word(each)}", style="red") for each in status.get("reasons", ())]


def cutover_of(status: Document) -> list[Text]:
    """How the latest cutover stands, and what tasks of this worker still wait for."""
    found = _part(status, "cutover")
    if not found:
        return []
    state, tasks = _word(found.get("state")), found.get("tasks", ())
    line = f"cutover {_word(found.get('leaving'))} → {_word(found.get('coming'))}: {state}"
    runs = state in {"joining", "watching"}
    if runs:
        ready = sum(bool(each.get("ready")) for each in tasks)
        line += f", {ready} of {len(tasks)} tasks are ready"
    why = f": {shortened(_word(found['why']))}" if found.get("why") else ""
    lines = [f"{line} (version {_word(found.get('since'))}){why}"]
    waiting = [each for each in status.get("tasks", ()) if runs and each.get("cutover")]
    lines += [
        f"  task {_word(each.get('partition'))}: {_word(each['cutover'])}" for each in waiting
    ]
    return [Text(each, style="red" if state == "aborted" else "cyan") for each in lines]


def replicas_table(
    status: Document, decided: Document | None = None, rates: Rates | None = None
) -> Table:
    """A row for each replica that the worker sees, or that anything was decided about.

    `rates` adds a column of elements a second by replica; None is unknown.
    """
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name, justify in _COLUMNS[:-1]:
        table.add_column(name, justify=justify, no_wrap=name == "replica")
    if rates is not None:
        table.add_column("per s", justify="right")
    table.add_column("why", overflow="fold")
    leader = _part(status, "output").get("leader")
    for name, seen, known in _rows(status, decided):
        since = _part(status, "detached").get(name)
        cells = _cells(name, seen, known, leads=name == leader, since=since)
        rate = [] if rates is None else [Text(_number(rates.get(name), ".0f"))]
        table.add_row(*cells[:-1], *rate, cells[-1])
    return table


def _rows(status: Document, decided: Document | None) -> Iterator[tuple[str, Document, Document]]:
    seen = {str(each.get("name")): each for each in status.get("replicas", ())}
    known = {str(each.get("name")): each for each in (decided or {}).get("replicas", ())}
    for name in dict.fromkeys([*seen, *known]):
        yield name, seen.get(name, {}), known.get(name, {})


def _cells(
    name: str, seen: Document, known: Document, *, leads: bool, since: object = None
) -> list[Text]:
    """`since`: how many records its topic has got since it was detached."""
    desired = known.get("state")
    state = str(desired if desired in {"quarantined", "detached"} else seen.get("state", UNKNOWN))
    if seen.get("ended") and state == "joined":
        state = "ended"
    incarnation = f" #{seen['incarnation']}" if seen.get("incarnation") else ""
    why = seen.get("why") or known.get("reason") or _confirmed(seen)
    if state == "detached" and since:
        why = f"{why}; {since} records since" if why else f"{since} records since"
    return [
        Text(printable(name) + incarnation + (" ◀" if leads else "")),
        Text(printable(state) + _liveness(seen, state), style=_STYLES.get(state, "")),
        Text(_stable(seen)),
        Text(_number(seen.get("behind_output"))),
        Text(_number(seen.get("lag_records"))),
        Text(_number(seen.get("share_first"), ".0%")),
        Text(_breaches(seen)),
        Text(shortened(_word(why))),
    ]


def _liveness(seen: Document, state: str) -> str:
    """What is to be known of a replica that brings nothing new."""
    still = seen.get("liveness") in {"not progressing", "silent"}
    return f", {seen['liveness']}" if still and state == "joined" else ""


def _confirmed(seen: Document) -> str:
    """Up to where a replica agrees with the output, if that is not as far as it is."""
    if not (seen.get("disagrees") or seen.get("unconfirmed")):
        return ""
    finding = "disagrees" if seen.get("disagrees") else "leaves events out"
    confirmed = seen.get("confirmed")
    return f"{finding}: confirmed " + ("nowhere" if confirmed is None else f"to {confirmed:,}")


def _breaches(seen: Document) -> str:
    counts = seen.get("breaches")
    return UNKNOWN if not isinstance(counts, Mapping) else f"{sum(counts.values()):,}"


def decisions_table(decisions: Sequence[Document]) -> Table:
    """A row for each decision, in the order given."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("version", "made", "who"):
        table.add_column(name, justify="right" if name == "version" else "left")
    table.add_column("decision", overflow="fold")
    table.add_column("verdict", overflow="fold")
    for each in decisions:
        accepted = each.get("accepted")
        verdict = "accepted" if accepted else f"refused: {_word(each.get('why'))}"
        table.add_row(
            Text(str(each.get("version", UNKNOWN)) if accepted else ""),
            Text(_moment(each.get("made"))),
            Text(_word(each.get("who"))),
            Text(shortened(_word(each.get("what")))),
            Text(shortened(verdict), style="" if accepted else "red"),
        )
    return table


def _part(document: Document, name: str) -> Document:
    found = document.get(name)
    return found if isinstance(found, Mapping) else {}


def _word(value: object) -> str:
    return UNKNOWN if value is None else printable(str(value))


def _number(value: object, form: str = ",") -> str:
    return format(value, form) if isinstance(value, int | float) else UNKNOWN


def _stable(document: Document) -> str:
    if document.get("ended"):
        return "infinity"
    point = document.get("stable_point")
    return UNKNOWN if point is None else str(point)


def _moment(made: object) -> str:
    if not isinstance(made, int):
        return UNKNOWN
    try:
        return datetime.fromtimestamp(made / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return UNKNOWN
