"""The plan of a run: every process of a topology, and of those that are started with it, by name.

Nothing is started here, and no Kafka is asked: a mistake is found before anything is done.

Who may decide
    Whoever can read the file that holds the run's token, and the processes that are started:
    `lmerge cutover` or `jumpstart` may be among them. A topology that names a token of its own is
    left to it.
"""

import os
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from lmerge_service.config import topology as topologies
from lmerge_service.config.processes import Broker, Restart, Up
from lmerge_service.config.topology import Topology
from lmerge_service.errors import ConfigurationError
from lmerge_service.local.broker import free_port
from lmerge_service.local.processes import LMERGE
from lmerge_service.local.up.runs import folder_of, token_of

__all__ = ("Merge", "PlannedProcess", "ProcessPlan", "plan")

_FINAL_CODES: Final = frozenset({2, 4, 5})
"""Of our commands: doing the same again ends in the same way (docs/operations.md)."""
_VARIABLE: Final = re.compile(r"\$\(([A-Za-z_][A-Za-z0-9_]*)\)")
"""In an argument, as Kubernetes has it: the value of a variable of the process's environment."""
_SET_AT_START: Final = "LMERGE_BOOTSTRAP"
_HTTP_PORT: Final = "--http-port"
_NEAR: Final = 100
"""So many ports from `http.port` on are tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedProcess:
    """A process that is to run."""

    name: str
    command: tuple[str, ...]
    restart: Restart
    environment: Mapping[str, str] = field(repr=False)
    """Over our own."""
    topics: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    attends: bool = False
    """It only looks on: when all others have ended, there is nothing for it to do."""

    def arguments(self, environment: Mapping[str, str]) -> tuple[str, ...]:
        """The command with the values of its variables."""
        return tuple(
            _VARIABLE.sub(lambda name: environment[name[1]], each) for each in self.command
        )

    def starts_again(self, code: int) -> bool:
        """Whether it is to run again after it ended with this code (negative: by a signal)."""
        if self.restart.when == "never" or (self.runs_ours and code in _FINAL_CODES):
            return False
        return self.restart.when == "always" or code != 0

    @property
    def runs_ours(self) -> bool:
        """Whether it is an `lmerge` command."""
        return self.command[: len(LMERGE)] == LMERGE


@dataclass(frozen=True, slots=True)
class Merge:
    """A topology whose workers run."""

    topology: Topology
    workers: Mapping[str, str]
    """Where each serves, by its name."""


@dataclass(frozen=True, slots=True)
class ProcessPlan:
    """All processes that are started and ended as one."""

    name: str
    path: Path
    broker: Broker | None
    kafka: topologies.Kafka
    """Of the first topology; where a broker is started, the address that it should have."""
    members: tuple[PlannedProcess, ...]
    merges: tuple[Merge, ...]
    token: str = field(repr=False)
    """The control token, where a topology has none; new for each plan."""
    queries: tuple[str, ...] = ()
    """Where queries serve, if there is a dashboard."""
    dashboard: str | None = None
    """Where its dashboard is, if it has one."""


def plan(
    path: Path,
    bootstrap: str | None = None,
    *,
    dashboard_port: int | None = None,
    trust: Sequence[str] = (),
) -> ProcessPlan:
    """What `lmerge up` is to start; a `bootstrap` that is given takes the place of a broker. With a
    `dashboard_port`, a dashboard at the first free port from that on; `trust` are its options by
    which workers with TLS are asked. It finds workers and queries by the record of the run.

    Raises:
        ConfigurationError: a file is no topology, has no section `up`, or names a program that is
            not there.
        EnvironmentMissingError: no port is free.
    """
    files = dict(_files(path.absolute(), bootstrap, set()))
    (first, (topology, up)), ports = next(iter(files.items())), set[int]()
    token, kept = secrets.token_hex(32), token_of(folder_of(topology.name))
    members, merges = list[PlannedProcess](), list[Merge]()
    for file, (each, section) in files.items():
        prefix = "" if file == first else f"{each.name}."
        workers = {
            f"{prefix}worker-{number + 1}": _port(each.http.port, ports)
            for number in range(section.workers)
        }
        scheme = "https" if each.http.tls else "http"
        addresses = {name: f"{scheme}://127.0.0.1:{port}" for name, port in workers.items()}
        merges.append(Merge(each, addresses))
        ours = each.http.control_token is None
        members += _workers(file, section, workers, ["--control-token", str(kept)] if ours else [])
        variables = {"LMERGE_TOPOLOGY": str(file), "LMERGE_TOPOLOGY_DIR": str(file.parent)} | (
            {"LMERGE_TOKEN": token} if ours else {}
        )
        if addresses:
            variables["LMERGE_WORKER"] = next(iter(addresses.values()))
        members += _processes(file, section, prefix, variables)
    broker = None if bootstrap else up.broker
    address, queries = None, list[str]()
    if dashboard_port is not None and any(_can_be_asked(each, trust) for each in merges):
        members, queries = _with_ports(members, ports)
        address = f"http://127.0.0.1:{_port(dashboard_port, ports)}"
        members.append(_dashboard(first, trust, address))
    return ProcessPlan(
        topology.name, first, broker, topology.kafka, tuple(members), tuple(merges), token,
        tuple(queries), address,
    )  # fmt: skip


def _can_be_asked(merge: Merge, trust: Sequence[str]) -> bool:
    """Whether a dashboard with these options can ask any worker of it."""
    demanded = merge.topology.http.demands_certificate
    return bool(merge.workers) and ("--certificate" in trust or not demanded)


def _with_ports(
    members: Sequence[PlannedProcess], taken: set[int]
) -> tuple[list[PlannedProcess], list[str]]:
    """The members, queries among them with an HTTP port that is known; and these addresses."""
    found, addresses = list[PlannedProcess](), list[str]()
    for each in members:
        if each.command[len(LMERGE) :][:2] == ("query", "run") and each.runs_ours:
            if _HTTP_PORT in each.command[:-1]:
                port = each.command[each.command.index(_HTTP_PORT) + 1]
            else:
                port = str(_port(0, taken))
                each = replace(each, command=(*each.command, _HTTP_PORT, port))  # noqa: PLW2901
            addresses.append(f"http://127.0.0.1:{port}")
        found.append(each)
    return found, addresses


def _dashboard(path: Path, trust: Sequence[str], address: str) -> PlannedProcess:
    port = address.rpartition(":")[2]
    return PlannedProcess(
        name="dashboard",
        command=(*LMERGE, "dashboard", str(path), *trust, "--port", port),
        restart=Restart(),
        environment={},
        attends=True,
    )


def _files(
    path: Path, bootstrap: str | None, seen: set[str]
) -> Iterator[tuple[Path, tuple[Topology, Up]]]:
    """The topology and those that it is started with, itself first."""
    loaded = topologies.load(path, bootstrap=bootstrap)
    if (up := loaded.up) is None:
        raise ConfigurationError(
            f"{path}: has no section `up`, which lists what is started with it "
            "(docs/operations/topology.md)"
        )
    if loaded.name in seen:
        raise ConfigurationError(f"{path}: {loaded.name} is started already: names must differ")
    if seen and up.broker is not None:
        raise ConfigurationError(f"{path}: up.broker: the topology that names this one decides")
    seen.add(loaded.name)
    yield path, (loaded, up)
    for other in up.merges:
        yield from _files((path.parent / other).resolve(), bootstrap, seen)


def _port(first: int, taken: set[int]) -> int:
    """The first free port from `first` on that no other worker is given; any free one for 0, or
    where none is near."""
    near = range(first, min(first + _NEAR, 65_536)) if first else ()
    port = free_port(*near, but=taken)
    taken.add(port)
    return port


def _workers(
    file: Path, section: Up, ports: Mapping[str, int], more: list[str]
) -> Iterator[PlannedProcess]:
    for name, port in ports.items():
        command = (*LMERGE, "run", str(file), "--http-port", str(port), *more)
        yield PlannedProcess(name=name, command=command, restart=section.restart, environment={})


def _processes(
    file: Path, section: Up, prefix: str, variables: Mapping[str, str]
) -> Iterator[PlannedProcess]:
    for each in section.processes:
        where, environment = f"{file}: up.processes: {each.name}", {**variables, **each.environment}
        program, *arguments = each.command
        _check_variables(arguments, {_SET_AT_START, *environment, *os.environ}, where)
        yield PlannedProcess(
            name=prefix + each.name,
            command=(*_found(program, where), *arguments),
            restart=each.restart or section.restart,
            environment=environment,
            topics=each.topics,
            after=tuple(prefix + name for name in each.after),
        )


def _check_variables(arguments: list[str], known: set[str], where: str) -> None:
    for name in (name for each in arguments for name in _VARIABLE.findall(each)):
        if name not in known:
            raise ConfigurationError(f"{where}: $({name}): there is no variable of this name")


def _found(program: str, where: str) -> tuple[str, ...]:
    if program == "lmerge":
        return LMERGE
    if (found := shutil.which(program)) is None:
        raise ConfigurationError(f"{where}: there is no program {program}")
    return (str(Path(found).absolute()),)
