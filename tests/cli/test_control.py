"""The commands that show and decide, against a worker's HTTP side in this process."""

import asyncio
import io
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fastapi import Depends, FastAPI
from rich.console import Console

from lmerge_service.config.http import Http
from lmerge_service.errors import TransportError
from lmerge_service.http.access import Access, AccessMiddleware
from lmerge_service.http.api import routes
from lmerge_service.http.cutover_view import CutoverView
from lmerge_service.http.server import serve
from lmerge_service.local.broker import free_port
from lmerge_service.merge.decisions.cutover import CutoverState
from lmerge_service.merge.decisions.ledger import Ledger
from lmerge_service.service.status.document import OutputStatus, ReplicaStatus, Status
from lmerge_service.service.status.shown import headline, progress, replicas_table, summary
from tests.certificates import Authority
from tests.cli.conftest import Lmerge
from tests.http.test_api import MemoryControl

STATUS: dict[str, Any] = {
    "name": "flights", "state": "running", "health": "degraded", "elements_in": 300,
    "reasons": ["replica c: topic C begins at offset 5: what was before is gone"],
    "a_field_of_tomorrow": {"tasks": []},
    "output": {
        "topic": "out", "case": "R3", "stable_point": 90, "ended": False, "leader": "a",
        "policy": {"insert": "first", "adjust": "lazy", "stable": "max"},
        "inserts": 10, "adjusts": 2, "stables": 3,
    },
    "replicas": [
        {"name": "a", "state": "joined", "stable_point": 90, "behind_output": 0, "lag_records": 0,
         "share_first": 0.75, "breaches": {}, "incarnation": 2, "ended": False, "why": None,
         "confirmed": 80, "inserts": 100, "adjusts": 0, "stables": 0},
        {"name": "b", "state": "joining", "stable_point": None, "behind_output": None,
         "lag_records": None, "share_first": 0.25, "breaches": {"broke_own_stable": 1200},
         "ended": False, "why": None},
        {"name": "c", "state": "excluded", "why": "topic C begins at \x1b[31m5"},
    ],
}  # fmt: skip


TOKEN = "open-sesame-open-sesame"


class Served:
    """A worker's HTTP side on a port of its own, that may go away and come back."""

    def __init__(self, folder: Path, **http: Any) -> None:
        self.control: MemoryControl | None = MemoryControl()
        self.status = dict(STATUS)
        token = folder / "control-token"
        token.write_text(TOKEN)
        fields = {"port": free_port(), "control_token": {"file": token}, **http}
        self.http = Http.model_validate(fields)
        scheme = "http" if self.http.tls is None else "https"
        self.address = f"{scheme}://127.0.0.1:{self.http.port}"

    def application(self) -> FastAPI:
        app, access = FastAPI(), Access(self.http)
        app.add_middleware(AccessMiddleware, access=access)
        reads, controls = [Depends(access.reads)], [Depends(access.controls)]
        app.include_router(routes(lambda: self.control, reads=reads, controls=controls))
        app.add_api_route("/status", lambda: self.status, dependencies=reads)
        return app

    @contextmanager
    def up(self) -> Iterator[None]:
        ready, stop = threading.Event(), asyncio.Event()
        loops: list[asyncio.AbstractEventLoop] = []

        async def run() -> None:
            async with serve(self.application(), self.http):
                loops.append(asyncio.get_running_loop())
                ready.set()
                await stop.wait()

        thread = threading.Thread(target=lambda: asyncio.run(run()), daemon=True)
        thread.start()
        assert ready.wait(10)
        try:
            yield
        finally:
            loops[0].call_soon_threadsafe(stop.set)
            thread.join(10)
            assert not thread.is_alive()


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    worker = Served(tmp_path_factory.mktemp("worker"))
    with worker.up():
        yield worker


@pytest.fixture
def served(worker: Served, monkeypatch: pytest.MonkeyPatch) -> Served:
    """A worker at which nothing has been decided, and that we may control."""
    monkeypatch.setenv("LMERGE_WORKER", worker.address)
    monkeypatch.setenv("LMERGE_TOKEN", TOKEN)
    worker.control = MemoryControl()
    return worker


def ledger_of(served: Served) -> Ledger:
    assert served.control is not None
    return served.control.ledger


# Showing


def test_what_is_shown_is_in_the_document_of_a_worker() -> None:
    assert STATUS.keys() - {"a_field_of_tomorrow"} <= Status.model_fields.keys()
    assert STATUS["output"].keys() <= OutputStatus.model_fields.keys()
    for each in STATUS["replicas"]:
        assert each.keys() <= ReplicaStatus.model_fields.keys()


def test_status_shows_each_replica_and_what_was_decided(lmerge: Lmerge, served: Served) -> None:
    lmerge("quarantine", "b", "--reason", "a day ahead")
    shown = lmerge("status")
    assert (shown.code, shown.err) == (0, "")
    assert [line.rstrip() for line in shown.out.splitlines()] == [
        "flights: running, degraded",
        "out is at 90, led by a, case R3, policy first, lazy, max",
        "• replica c: topic C begins at offset 5: what was before is gone",
        "",
        "replica  state        stable point  behind  lag  first  breaches  confirmed",
        "a #2 ◀   joined                 90       0    0    75%         0  to 80",
        "b        quarantined             ?       ?    ?    25%     1,200  ?",
        "c        excluded                ?       ?    ?      ?         ?  ?",
        "b: a day ahead",
        "c: topic C begins at \\x1b[31m5",
        "version 2",
    ]


def test_status_is_shown_while_the_worker_knows_no_decisions(
    lmerge: Lmerge, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served, "control", None)
    shown = lmerge("status")
    assert shown.code == 0
    assert shown.out.splitlines()[-1] == "version unknown"


def test_status_for_programs_is_one_document(lmerge: Lmerge, served: Served) -> None:
    document = json.loads(lmerge("status", "--json").out)
    assert document["status"] == STATUS
    assert document["decided"]["version"] == 1


def test_decisions_are_listed_the_latest_first(lmerge: Lmerge, served: Served) -> None:
    lmerge("detach", "b")
    lmerge("detach", "x", "--id", "mine")
    rows = lmerge("decisions", "--limit", "2").out.splitlines()
    assert rows[0].split() == ["version", "made", "who", "decision", "verdict"]
    assert "detach x" in rows[1]
    assert "refused" in rows[1]
    assert any(row.startswith("      2 ") and row.rstrip().endswith("accepted") for row in rows)
    only = json.loads(lmerge("decisions", "mine", "--json").out)
    assert (only["what"], only["accepted"]) == ("detach x", False)
    assert lmerge("decisions", "other").code == 6


# Deciding


def test_each_command_decides(lmerge: Lmerge, served: Served) -> None:
    for number, (command, words) in enumerate(
        [
            (("attach", "d", "D", "--joining-at", "-5"), "attach d"),
            (("attach", "e", "E", "--normalise", "--more", '{"properties":{"key":true}}'),
             "attach e"),
            (("quarantine", "b"), "quarantine b"),
            (("release", "b", "--joining-at", "7"), "release b"),
            (("detach", "a"), "detach a"),
            (("accept-gap", "d", "--until", "-5"), "accept the gap until d is correct, at -5"),
            (("policy", "--stable", "quorum(2)"), "policy first, lazy, quorum(2)"),
        ],
        2,
    ):  # fmt: skip
        outcome = lmerge(*command, "--id", f"n{number}")
        assert (outcome.code, outcome.err) == (0, ""), outcome
        assert outcome.out == f"version {number}: {words} (decision n{number})\n"
    replicas = ledger_of(served).replicas
    assert replicas["d"].replica.joining_at == -5
    assert replicas["e"].replica.normalise
    assert replicas["e"].replica.properties.key
    assert replicas["b"].replica.joining_at == 7
    assert "@" in replicas["b"].who


def test_the_policy_is_shown_and_changed_in_part(lmerge: Lmerge, served: Served) -> None:
    lmerge("policy", "--adjust", "eager")
    lmerge("policy", "--stable", "lag(5)")
    assert lmerge("policy").out == "insert  first\nadjust  eager\nstable  lag(5)\n"
    shown = json.loads(lmerge("policy", "--json").out)
    assert (shown["version"], shown["policy"]["stable"]) == (3, "lag(5)")


def test_a_decision_for_programs_is_one_document(lmerge: Lmerge, served: Served) -> None:
    made = json.loads(lmerge("detach", "a", "--json").out)
    assert (made["version"], made["offset"], made["action"]) == (2, 1, "detach a")


def test_asking_again_with_the_id_is_the_same_decision(lmerge: Lmerge, served: Served) -> None:
    first = lmerge("detach", "a", "--id", "once")
    assert lmerge("detach", "a", "--id", "once") == first
    assert ledger_of(served).version == 2


# What goes wrong


@pytest.mark.parametrize(
    ("command", "error"),
    [
        ("detach x", "there is no replica x; there are: a, b, c (version 1)"),
        ("release a", "replica a is attached: release is not possible (version 1)"),
        ("policy --stable quorum(9)", "stable=quorum(9) of 3 inputs is never reached (version 1)"),
    ],
)
def test_a_refused_decision_is_exit_6(
    command: str, error: str, lmerge: Lmerge, served: Served
) -> None:
    outcome = lmerge(*command.split())
    assert (outcome.code, outcome.error) == (6, error)
    assert ledger_of(served).version == 1


def test_who_saw_an_older_version_sees_what_came_between(lmerge: Lmerge, served: Served) -> None:
    assert lmerge("quarantine", "b", "--expects", "1").code == 0
    late = lmerge("detach", "a", "--expects", "1")
    assert late.code == 6
    assert 'the version is 2: "quarantine b" by ' in late.error


@pytest.mark.parametrize(
    ("command", "error"),
    [
        ("detach", "Missing argument 'REPLICA' (lmerge detach --help has more)"),
        ("detach a/b", "Invalid value for 'REPLICA': 'a/b' is no name of a replica"),
        ("detach .", "Invalid value for 'REPLICA': '.' is no name of a replica"),
        ("decisions a/b", "Invalid value: 'a/b' is no id of a decision"),
        ("attach d no/topic", "'no/topic' is no name of a topic"),
        ("attach d D --more x", "Invalid value: --more needs a JSON object, got 'x'"),
        ("attach d D --more {\"topic\":1}", "Invalid value: --more is for other fields than topic"),
        ("attach d D --more {\"colour\":1}", "colour: Extra inputs are not permitted"),
        ("cutover --from a", "Invalid value: --from and --to go together"),
        ("cutover --from a/b --to c", "Invalid value for '--from': 'a/b' is no name of a replica"),
        ("cutover --abort --from a", "Invalid value: --abort ends the one that runs"),
        ("cutover --reason slow", "Invalid value: --reason is why the one that runs is aborted"),
        ("cutover --from a --to d --joining-at 5", "Invalid value: --joining-at and --more are"),
        ("cutover --dry-run t.yaml", "Invalid value: --dry-run compares the one of --to, and"),
        ("cutover --dry-run t.yaml --to d", "t.yaml: cannot read it: No such"),
        ("cutover --bootstrap h:9", "Invalid value: --bootstrap is for --dry-run"),
        ("policy --insert last", "insert: String should match pattern"),
        ("status --at here", "Invalid value for '--at' (env var: 'LMERGE_WORKER'): 'here' is no"),
        ("status --at http://h/x", "Invalid value for '--at' (env var: 'LMERGE_WORKER'): "),
        ("status --token-file nowhere", "cannot read nowhere: No such file or directory"),
    ],
)  # fmt: skip
def test_a_mistake_is_exit_2(command: str, error: str, lmerge: Lmerge, served: Served) -> None:
    outcome = lmerge(*command.split())
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.error.startswith(error)
    assert ledger_of(served).version == 1


def test_a_worker_that_is_not_there_is_exit_3(lmerge: Lmerge) -> None:
    at = f"http://127.0.0.1:{free_port()}"
    for command in (("status",), ("detach", "a"), ("policy",)):
        outcome = lmerge(*command, "--at", at)
        assert outcome.code == 3
        assert outcome.error.startswith(f"no worker can be reached at {at} (")


def test_an_unknown_outcome_names_the_id(lmerge: Lmerge, served: Served) -> None:
    assert served.control is not None
    served.control.failure = TransportError("no answer from the control log in time")
    outcome = lmerge("detach", "a", "--id", "mine")
    assert outcome.code == 3
    assert "whether it holds is not known" in outcome.error
    assert outcome.error.endswith("(`lmerge decisions mine`, or the same command with --id mine)")


def test_a_worker_that_dies_while_it_is_asked_leaves_the_outcome_unknown(lmerge: Lmerge) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def hang_up() -> None:
            peer, _ = listener.accept()
            peer.recv(1)
            peer.close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        outcome = lmerge("detach", "a", "--id", "mine", "--at", f"http://127.0.0.1:{port}")
        thread.join(10)
    assert outcome.code == 3
    assert "whether the decision holds is not known: `lmerge decisions mine`" in outcome.error


def test_what_is_no_worker_is_named(
    lmerge: Lmerge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Served(tmp_path)
    monkeypatch.setattr(other, "application", FastAPI)
    with other.up():
        outcome = lmerge("detach", "a", "--at", other.address)
    assert outcome.code == 2
    assert outcome.error == f"{other.address} cannot do this (404: Not Found)"


# Who asks


def test_who_may_not_decide_is_shown_how(
    lmerge: Lmerge, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LMERGE_TOKEN")
    for wrong, gives in ((None, "one"), ("another-token-another", "another one")):
        if wrong is not None:
            monkeypatch.setenv("LMERGE_TOKEN", wrong)
        refused = lmerge("detach", "a")
        assert refused.code == 2
        assert "changes need the control token" in refused.error
        assert refused.error.endswith(f"(--token-file or LMERGE_TOKEN gives {gives})")
        assert "another-token" not in refused.error
    assert ledger_of(served).version == 1


def test_a_token_is_read_from_a_file(
    lmerge: Lmerge, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LMERGE_TOKEN")
    Path("token").write_text(f"{TOKEN}\n")
    assert lmerge("detach", "a", "--token-file", "token").code == 0


def test_over_tls_the_worker_must_be_signed_by_whom_we_trust_and_may_ask_who_we_are(
    lmerge: Lmerge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path)
    server, client = authority.sign("server"), authority.sign("client")
    tls = {"certificate": server.certificate, "key": server.key}
    monkeypatch.setenv("LMERGE_TOKEN", TOKEN)
    secure = Served(tmp_path, tls={**tls, "client_ca": authority.certificate})
    trust = ("--at", secure.address, "--ca", str(authority.certificate))
    with secure.up():
        stranger = lmerge("status", "--at", secure.address)
        assert (stranger.code, "certificate" in stranger.error.lower()) == (3, True)
        assert lmerge("status", *trust).code == 3
        assert lmerge("detach", "a", *trust, "--certificate", str(client.both)).code == 0
    missing = lmerge("status", *trust, "--certificate", "nowhere")
    assert (missing.code, missing.error[:11]) == (2, "cannot read")


def test_a_token_is_never_sent_in_the_clear(
    lmerge: Lmerge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LMERGE_TOKEN", "open-sesame")
    outcome = lmerge("detach", "a", "--at", "http://192.0.2.1:8321")
    assert outcome.code == 2
    assert outcome.error == (
        "a token is not sent in the clear: use https, not http://192.0.2.1:8321"
    )


@pytest.mark.parametrize("text", ["", "\n", "two\nlines", "ä"])
def test_what_is_no_token_is_refused(text: str, lmerge: Lmerge, served: Served) -> None:
    Path("token").write_text(text)
    outcome = lmerge("status", "--token-file", "token")
    assert (outcome.code, outcome.error) == (
        2,
        "token holds no token: one line of ASCII is needed",
    )


# A cutover


def test_a_cutover_is_asked_for_and_watched_to_its_end(lmerge: Lmerge, served: Served) -> None:
    asked = "--from a --to d --topic D --joining-at 5 --watch 7 --max-behind 9 --max-divergences 3"
    done = lmerge("cutover", *asked.split(), "--no-wait")
    assert done.code == 0, done.err
    assert done.out.startswith("version 2: cutover a → d (decision ")
    cutover = ledger_of(served).cutover
    assert cutover is not None
    assert (cutover.watch, cutover.max_behind, cutover.max_divergences) == (7, 9, 3)
    assert ledger_of(served).replicas["d"].replica.joining_at == 5
    with shown(served, "joining", task="d is at 3 and lags"):
        assert "cutover a → d: joining, 0 of 1 tasks are ready (version 2)" in lmerge("status").out
        assert "  task 0: d is at 3 and lags" in lmerge("status").out
    with shown(served, "done"):
        watched = lmerge("cutover")
    assert (watched.code, watched.out) == (0, "cutover a → d: done (version 2)\n")
    with shown(served, "aborted", why="anna: too slow"):
        watched = lmerge("cutover", "--json")
    assert (watched.code, json.loads(watched.out)["state"]) == (6, "aborted")
    assert watched.err == "error: the cutover a → d was aborted: anna: too slow\n"


@contextmanager
def shown(
    served: Served, state: str, why: str | None = None, task: str | None = None
) -> Iterator[None]:
    """What a worker would show of the cutover, were it in this state."""
    cutover = ledger_of(served).cutover
    assert cutover is not None
    view = CutoverView.of(replace(cutover, state=CutoverState(state), why=why))
    before = served.status
    served.status = {
        **before,
        "cutover": view.model_dump(mode="json"),
        "tasks": [{"partition": 0, "cutover": task}],
    }
    try:
        yield
    finally:
        served.status = before


def test_a_cutover_can_be_aborted(lmerge: Lmerge, served: Served) -> None:
    refused = lmerge("cutover", "--abort")
    assert (refused.code, refused.err) == (6, "error: no cutover runs (version 1)\n")
    lmerge("cutover", "--from", "a", "--to", "b", "--no-wait")
    assert lmerge("cutover", "--abort").out.startswith("version 3: abort the cutover (decision ")
    cutover = ledger_of(served).cutover
    assert cutover is not None
    assert (cutover.state, str(cutover.why)[:3]) == ("aborted", "by ")
    lmerge("cutover", "--from", "a", "--to", "b", "--no-wait")
    lmerge("cutover", "--abort", "--reason", "it is slower")
    cutover = ledger_of(served).cutover
    assert cutover is not None
    assert (cutover.state, str(cutover.why)[-14:]) == ("aborted", ": it is slower")


def test_where_there_was_no_cutover_there_is_none_to_watch(lmerge: Lmerge, served: Served) -> None:
    done = lmerge("cutover")
    assert (done.code, done.err) == (
        6, "error: there was no cutover yet: --from and --to begin one\n",
    )  # fmt: skip


def test_how_far_a_replica_is_confirmed_has_a_column_of_its_own() -> None:
    rows: list[dict[str, Any]] = [
        {"name": "a", "confirmed": 90, "confirmed_from": None},
        {"name": "b", "confirmed": 1_200, "confirmed_from": 7, "disagrees": True},
        {"name": "c", "confirmed": None, "unconfirmed": True, "left_out": 40},
        {"name": "d", "confirmed": None},
        {"name": "e", "confirmed": None, "confirmed_to_the_end": True},
        {"name": "f"},
    ]
    *_, confirmed = replicas_table({"replicas": rows}).columns
    assert [str(cell) for cell in confirmed.cells] == [
        "to 90",
        "disagrees, to 1200",
        "40 left out, nowhere",
        "not yet",
        "to infinity",
        "?",
    ]


def test_times_are_dates_where_the_topology_has_their_unit() -> None:
    replica = {
        "name": "a", "state": "joined", "stable_point": 1_357_020_000_000,
        "behind_output": 90_000, "confirmed": 1_357_016_400_999, "lag_records": None,
    }  # fmt: skip
    status = {
        "time_unit": "ms",
        "output": {"topic": "out", "stable_point": 1_357_020_090_000},
        "replicas": [replica],
    }
    cells = {
        column.header: str(next(iter(column.cells))) for column in replicas_table(status).columns
    }
    assert cells["stable point"] == "2013-01-01 06:00:00"
    assert cells["behind"] == "0:01:30"
    assert cells["confirmed"] == "to 2013-01-01 05:00:00"
    assert "out is at 2013-01-01 06:01:30, led by nobody" in headline(status).plain
    line = "out is stable to 2013-01-01 06:01:30, led by nobody; a joined to 2013-01-01 06:00:00"
    assert progress(status) == line
    assert "a joined to 1357020000000" in progress({**status, "time_unit": "none"})


@pytest.mark.parametrize("status", [{}, {"replicas": [{}]}, {"output": None, "tasks": []}])
def test_what_is_not_known_is_never_shown_as_none(status: dict[str, Any]) -> None:
    shown = [progress(status), summary(status), headline(status).plain]
    shown += [str(each) for column in replicas_table(status).columns for each in column.cells]
    assert "None" not in " ".join(shown)


def test_a_terminal_of_80_columns_shows_all_columns_of_long_names() -> None:
    """Names and states fold; nothing is cut off on the right."""
    date = 1_357_020_000_000
    rows = [
        {
            "name": name, "state": "joined", "liveness": "not progressing", "stable_point": date,
            "behind_output": 90_000, "lag_records": 12_345, "share_first": 0.5,
            "breaches": {"late": 7}, "confirmed": date, "confirmed_from": date - 86_400_000,
            "unconfirmed": True, "left_out": 40,
        }
        for name in ("replica-new-york", "replica-amsterdam")
    ]  # fmt: skip
    console = Console(width=80, file=io.StringIO())
    console.print(replicas_table({"time_unit": "ms", "replicas": rows}))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    above, below, *lines = shown.splitlines()
    for word in ("replica", "state", "point", "behind", "lag", "first", "breaches", "confirmed"):
        assert word in below
    assert "stable" in above
    assert all(line.strip() for line in lines)
    assert {"12,345", "40", "7", "50%"} <= set(lines[0].split())
    assert shown.count("06:00:00") == 4
