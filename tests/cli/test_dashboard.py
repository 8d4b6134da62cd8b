"""Whom `lmerge dashboard` asks, and as whom: by address, from a topology's port on, or where
`lmerge up` has put the workers."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from lmerge_service.cli.workers import WorkerAccess
from lmerge_service.dashboard import serving
from lmerge_service.dashboard.polling import Target
from lmerge_service.dashboard.watching import Watched
from lmerge_service.local.up.runs import KnownProcess, UpRun, folder_of, write
from tests.certificates import Authority
from tests.cli.conftest import Lmerge
from tests.cli.test_control import Served

Asked = Callable[..., dict[str, Target]]

TOKEN = "of-who-may-read-that-merge"


@pytest.fixture
def asked(
    lmerge: Lmerge, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., dict[str, Target]]:
    """What the command would ask, by address."""
    monkeypatch.setenv("LMERGE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("LMERGE_TOKEN", raising=False)
    found: list[Watched] = []

    async def run(watched: Watched, *_: object) -> None:
        found.append(watched)

    monkeypatch.setattr(serving, "run", run)

    def ask(*arguments: str) -> dict[str, Target]:
        outcome = lmerge("dashboard", *arguments)
        assert outcome.code == 0, outcome.err
        return {each.address: each for each in found.pop().targets}

    return ask


def topology(folder: Path, name: str, http: str, up: str = "") -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(
        f"name: {name}\nkafka: {{bootstrap: 127.0.0.1:9}}\noutput: {{topic: {name}.out}}\n"
        f"replicas:\n  - {{name: a, topic: {name}.a}}\nhttp: {{{http}}}\n{up}"
    )
    return path


def authorization(target: Target) -> str | None:
    return dict(target.settings["headers"]).get("authorization")


def test_workers_are_asked_from_the_port_on_and_those_of_a_second_merge_behind_them(
    asked: Asked, tmp_path: Path
) -> None:
    topology(tmp_path, "east", "port: 8400", "up: {workers: 2}\n")
    path = topology(tmp_path, "all", "port: 8399", "up: {workers: 2, merges: [east.yaml]}\n")
    assert list(asked(str(path))) == [f"http://127.0.0.1:{port}" for port in range(8399, 8403)]
    assert list(asked(str(path), "http://10.0.0.1:8321")) == ["http://10.0.0.1:8321"]


def test_workers_of_what_is_up_are_asked_where_they_are_and_each_with_its_topology_s_token(
    asked: Asked, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text(TOKEN)
    topology(tmp_path, "east", "port: 0, read_token: {file: secret}", "up: {}\n")
    path = topology(tmp_path, "all", "port: 8399", "up: {workers: 2, merges: [east.yaml]}\n")
    ours, theirs = ["http://127.0.0.1:8500", "http://127.0.0.1:8501"], "http://127.0.0.1:8600"
    supervisor = KnownProcess(os.getpid(), 0.0)
    workers = {"all": ours, "east": [theirs]}
    run = UpRun(
        id="x", path=str(path), name="all", supervisor=supervisor, workers=workers,
        queries=["http://127.0.0.1:8700"],
    )  # fmt: skip
    folder = folder_of("all")
    folder.mkdir(parents=True)
    write(folder, run)
    found = asked(str(path))
    assert list(found) == [*ours, theirs, "http://127.0.0.1:8700"]
    assert authorization(found[theirs]) == f"Bearer {TOKEN}"
    assert {authorization(found[each]) for each in ours} == {None}
    (tmp_path / "given").write_text("another-one-that-was-given")
    given = asked(str(path), "--token-file", str(tmp_path / "given"))
    assert authorization(given[theirs]) == "Bearer another-one-that-was-given"


@pytest.mark.parametrize(
    ("http", "up", "expected"),
    [
        ("port: 0", "", "http.port: it is any free one: name the workers by their addresses"),
        ("port: 8399", "up: {workers: 0}\n", "there is no worker to ask"),
    ],
)
def test_where_no_worker_can_be_asked_it_is_one_line(
    lmerge: Lmerge, asked: Asked, tmp_path: Path, http: str, up: str, expected: str
) -> None:
    outcome = lmerge("dashboard", str(topology(tmp_path, "t", http, up)))
    assert outcome.code == 2
    assert outcome.error.endswith(expected)


def test_on_another_address_it_demands_tls_and_a_login(lmerge: Lmerge, asked: Asked) -> None:
    outcome = lmerge("dashboard", "http://127.0.0.1:8321", "--host", "0.0.0.0")  # noqa: S104
    assert outcome.code == 2
    assert "--host 0.0.0.0 can be reached by others" in " ".join(outcome.err.split())


# --- TLS ------------------------------------------------------------------------------------------


def answered(address: str, settings: dict[str, Any]) -> int | str:
    """The status of an answer, or why there was none, as the page shows it."""
    target = Target(address, settings)

    async def ask() -> None:
        asking = asyncio.create_task(target.keep_asking(changed := asyncio.Event()))
        await changed.wait()
        asking.cancel()

    asyncio.run(ask())
    return 200 if target.answer.status is not None else str(target.answer.away)


def test_workers_with_tls_are_trusted_by_their_topology_s_certificate_and_no_others_are(
    tmp_path: Path,
) -> None:
    authority = Authority(tmp_path)
    worker = Served(tmp_path, tls={"certificate": authority.sign("worker").both})
    other = Served(tmp_path, tls={"certificate": authority.sign("other").both})
    access = WorkerAccess()
    with worker.up(), other.up():
        assert answered(worker.address, access.settings_of(worker.address, worker.http)) == 200
        away = answered(other.address, access.settings_of(other.address, worker.http))
        assert str(away).startswith("its certificate is not trusted, --ca names who signs it: ")
        away = answered(worker.address, access.settings(worker.address))
        assert str(away).startswith("its certificate is not trusted, --ca names who signs it: ")
        signed = WorkerAccess(ca=authority.certificate)
        assert answered(other.address, signed.settings_of(other.address, worker.http)) == 200


def test_a_certificate_for_another_host_is_not_trusted_though_its_file_is_ours(
    tmp_path: Path,
) -> None:
    identity = Authority(tmp_path).sign("worker", "DNS:worker.example")
    worker = Served(tmp_path, tls={"certificate": identity.both})
    with worker.up():
        away = answered(worker.address, WorkerAccess().settings_of(worker.address, worker.http))
    assert "IP address mismatch" in str(away)


def test_workers_that_demand_a_certificate_are_left_out_with_one_line(
    lmerge: Lmerge, asked: Asked, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    tls = f"tls: {{certificate: '{authority.sign('worker').both}', client_ca: ca.pem}}"
    topology(tmp_path, "east", f"port: 8400, {tls}", "up: {}\n")
    path = topology(tmp_path, "all", "port: 8399", "up: {merges: [east.yaml]}\n")
    outcome = lmerge("dashboard", str(path))
    assert outcome.code == 0
    line = "its workers demand a certificate: without --certificate they are not shown"
    assert outcome.err == f"{tmp_path / 'east.yaml'}: {line}\n"
    certificate = str(authority.sign("us").both)
    assert "https://127.0.0.1:8400" in asked(str(path), "--certificate", certificate)


def test_a_worker_s_certificate_with_our_own_serves_one_that_demands_it(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    tls = {"certificate": authority.sign("worker").both, "client_ca": authority.certificate}
    worker = Served(tmp_path, tls=tls)
    access = WorkerAccess(certificate=authority.sign("us").both)
    with worker.up():
        settings = access.settings_of(worker.address, worker.http)
        with httpx.Client(**settings, timeout=30) as client:
            assert client.get("/status").status_code == 200
