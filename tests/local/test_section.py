"""The section `up`: what is accepted, and that every fault is one line that names the place."""

import socket
from pathlib import Path

import pytest

from lmerge_service.config.topology import load
from lmerge_service.errors import ConfigurationError
from lmerge_service.local.broker import is_free
from lmerge_service.local.processes import LMERGE
from lmerge_service.local.up.plan import plan
from tests.certificates import Authority

HEAD = """\
name: t
kafka: {bootstrap: 127.0.0.1:19099}
output: {topic: t.out}
replicas:
  - {name: a, topic: t.a}
http: {port: 0}
"""


def write(tmp_path: Path, section: str, name: str = "t") -> Path:
    path = tmp_path / f"{name}.yaml"
    path.write_text(HEAD.replace("name: t\n", f"name: {name}\n") + section)
    return path


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ("up: {brokers: {}}", "7: up.brokers: unknown field"),
        (
            "up:\n  processes:\n    - {name: a, command: [x], comand: [x]}",
            "9: up.processes[0].comand: unknown",
        ),
        ("up:\n  processes:\n    - {name: a}", "9: up.processes[0].command: is missing"),
        ("up:\n  processes:\n    - {name: a, command: []}", "9: up.processes[0].command: "),
        ("up:\n  processes:\n    - {name: a, command: [x, true]}", "9: up.processes[0].command[1]"),
        ("up:\n  processes:\n    - {name: kafka, command: [x]}", "kafka is the name of what is"),
        ("up:\n  processes:\n    - {name: ../x, command: [x]}", "9: up.processes[0].name: "),
        (
            "up:\n  processes:\n    - {name: a, command: [x]}\n    - {name: a, command: [y]}",
            "7: up: processes share the name a",
        ),
        ("up:\n  processes:\n    - {name: a, command: [x], after: [b]}", "a comes after b, which"),
        (
            "up: {processes: [{name: a, command: [x], after: [a]}]}",
            "7: up: processes wait for each other: a",
        ),
        ("up: {restart: {when: often}}", "7: up.restart.when: "),
        ("up: {restart: {most: -1}}", "7: up.restart.most: "),
        ("up: {workers: 1000}", "7: up.workers: "),
    ],
)
def test_a_fault_is_one_line_that_names_the_place(
    tmp_path: Path, section: str, expected: str
) -> None:
    path = write(tmp_path, section)
    with pytest.raises(ConfigurationError) as error:
        load(path)
    (line,) = str(error.value).splitlines()
    assert line.startswith(f"{path}:")
    assert expected in line


def test_a_local_kafka_has_no_tls(tmp_path: Path) -> None:
    path = write(tmp_path, "up: {broker: {}}")
    path.write_text(path.read_text().replace("19099}", "19099, tls: {}}"))
    with pytest.raises(ConfigurationError, match=r"up\.broker is a Kafka without TLS"):
        load(path)


def test_a_topology_without_the_section_is_not_brought_up(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="has no section `up`"):
        plan(write(tmp_path, ""))


def test_a_program_that_is_not_there_is_found_before_anything_is_started(tmp_path: Path) -> None:
    path = write(tmp_path, "up:\n  processes:\n    - {name: a, command: [no-such-program]}")
    with pytest.raises(ConfigurationError) as error:
        plan(path)
    assert str(error.value) == f"{path}: up.processes: a: there is no program no-such-program"


def test_a_variable_that_is_not_there_is_found_before_anything_is_started(tmp_path: Path) -> None:
    path = write(tmp_path, "up:\n  processes:\n    - {name: a, command: [lmerge, $(NO_SUCH)]}")
    with pytest.raises(ConfigurationError) as error:
        plan(path)
    expected = f"{path}: up.processes: a: $(NO_SUCH): there is no variable of this name"
    assert str(error.value) == expected


def test_a_topology_keeps_the_token_that_it_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OURS", "a-token-of-sixteen-and-more")
    path = write(tmp_path, "up:\n  processes:\n    - {name: a, command: [lmerge]}")
    path.write_text(path.read_text().replace("{port: 0}", "{port: 0, control_token: {env: OURS}}"))
    worker, process = plan(path).members
    assert "--control-token" not in worker.command
    assert set(process.environment) == {"LMERGE_TOPOLOGY", "LMERGE_TOPOLOGY_DIR", "LMERGE_WORKER"}


def test_a_plan_has_workers_with_a_port_each_and_this_lmerge(tmp_path: Path) -> None:
    section = "up:\n  workers: 2\n  processes:\n    - {name: a, command: [lmerge, x, --rate, 5]}"
    found = plan(write(tmp_path, section))
    assert [each.name for each in found.members] == ["worker-1", "worker-2", "a"]
    assert found.members[2].command == (*LMERGE, "x", "--rate", "5")
    ports = {each.command[-3] for each in found.members[:2]}
    assert len(ports) == 2
    assert {address.rpartition(":")[2] for address in found.merges[0].workers.values()} == ports


def test_workers_have_consecutive_ports_from_the_topology_s_on(tmp_path: Path) -> None:
    first = next(p for p in range(21_000, 31_000) if all(map(is_free, range(p, p + 4))))
    path = write(tmp_path, "up: {workers: 3}")
    path.write_text(path.read_text().replace("{port: 0}", f"{{port: {first}}}"))
    at = [f"http://127.0.0.1:{port}" for port in range(first, first + 4)]
    assert list(plan(path).merges[0].workers.values()) == at[:3]
    with socket.socket() as occupied:  # that one is left out, and the next one taken
        occupied.bind(("127.0.0.1", first + 1))
        occupied.listen()
        assert list(plan(path).merges[0].workers.values()) == [at[0], *at[2:]]


def test_a_dashboard_asks_all_workers_and_queries_and_keeps_nothing_up(tmp_path: Path) -> None:
    section = "up:\n  workers: 2\n  processes:\n    - {name: a, command: [lmerge, query, run, f:q]}"
    found = plan(write(tmp_path, section), dashboard_port=8320)
    *others, query, page = found.members
    assert not any(each.attends for each in others)
    assert page.attends
    port = query.command[query.command.index("--http-port") + 1]
    workers = found.merges[0].workers.values()
    assert found.dashboard is not None
    options = [str(tmp_path / "t.yaml"), "--port", found.dashboard.rpartition(":")[2]]
    assert page.command == (*LMERGE, "dashboard", *options)
    assert len(workers) == 2
    assert found.queries == (f"http://127.0.0.1:{port}",)
    none = plan(write(tmp_path, "up: {workers: 0}"), dashboard_port=8320)
    assert (none.members, none.dashboard) == ((), None)


def with_tls(path: Path, authority: Authority, more: str = "") -> Path:
    identity = authority.sign("worker")
    tls = f"http: {{port: 0, tls: {{certificate: '{identity.both}'{more}}}}}"
    path.write_text(path.read_text().replace("http: {port: 0}", tls))
    return path


def test_a_dashboard_is_given_whom_to_trust(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    path = with_tls(write(tmp_path, "up: {}"), authority)
    plain = plan(path, dashboard_port=8320)
    (at,) = plain.merges[0].workers.values()
    assert at.startswith("https://")
    assert "--ca" not in plain.members[-1].command
    trusting = plan(path, dashboard_port=8320, trust=["--ca", "ca.pem"])
    command = trusting.members[-1].command
    assert command[command.index("--ca") + 1] == "ca.pem"


def test_there_is_no_dashboard_where_all_workers_demand_a_certificate_that_it_lacks(
    tmp_path: Path,
) -> None:
    authority = Authority(tmp_path)
    path = with_tls(write(tmp_path, "up: {}"), authority, f", client_ca: '{authority.certificate}'")
    assert plan(path, dashboard_port=8320).dashboard is None
    ours = ["--certificate", "ours.pem"]
    assert plan(path, dashboard_port=8320, trust=ours).dashboard is not None


def test_what_is_started_with_a_topology_has_its_name_before_its_own(tmp_path: Path) -> None:
    write(tmp_path, "up:\n  processes:\n    - {name: a, command: [lmerge], after: []}", "east")
    found = plan(write(tmp_path, "up: {broker: {}, merges: [east.yaml]}"))
    assert [each.name for each in found.members] == ["worker-1", "east.worker-1", "east.a"]
    assert [each.topology.name for each in found.merges] == ["t", "east"]


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ("up: {broker: {}}", "the topology that names this one decides"),
        ("up: {merges: [t.yaml]}", "t is started already"),
    ],
)
def test_topologies_that_do_not_go_together_are_refused(
    tmp_path: Path, section: str, expected: str
) -> None:
    write(tmp_path, section, "east")
    with pytest.raises(ConfigurationError, match=expected):
        plan(write(tmp_path, "up: {merges: [east.yaml]}"))


@pytest.mark.parametrize(
    ("when", "program", "again"),
    [
        ("failure", "lmerge", {0: False, 1: True, 2: False, 3: True, 4: False, 5: False, -9: True}),
        ("failure", "sh", {0: False, 1: True, 2: True, -15: True}),
        ("always", "sh", {0: True, 1: True}),
        ("never", "sh", {0: False, 1: False, -9: False}),
    ],
)
def test_what_is_started_again(
    tmp_path: Path, when: str, program: str, again: dict[int, bool]
) -> None:
    command = f"{{name: a, command: [{program}], restart: {{when: {when}}}}}"
    (member,) = plan(write(tmp_path, f"up:\n  workers: 0\n  processes:\n    - {command}")).members
    assert {code: member.starts_again(code) for code in again} == again
