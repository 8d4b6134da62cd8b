"""`lmerge dashboard`: a page about all workers of a merge."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from lmerge_service.cli.options import TopologyBootstrap, argument, option, warnings_only
from lmerge_service.cli.workers import AT, WorkerAccess, address_of, somebody
from lmerge_service.errors import ConfigurationError, fault_message

if TYPE_CHECKING:
    from lmerge_service.config.http import Http
    from lmerge_service.config.topology import Topology

__all__ = ("PORT", "dashboard")

PORT = 8320
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


def dashboard(
    watched: list[str] | None = argument(
        "TOPOLOGY.yaml|URL",
        "What to watch: a topology's workers where `lmerge up` has put them, else from its port "
        f"on, or workers and queries by address. [default: {AT}]",
        default=None,
    ),
    port: int = option("PORT", "Where the page is; 0: any free port.", min=0, default=PORT),
    host: str = option(
        "ADDRESS",
        "Serve here; not on loopback it needs TLS and a login token.",
        default="127.0.0.1",
    ),
    name: list[str] | None = option(
        "HOST", "A host name by which browsers know it, beside its address.", default=None
    ),
    tls_certificate: Path | None = option(
        "FILE", "The page's own certificate with its key, for https.", default=None
    ),
    login_token_file: Path | None = option(
        "FILE", "Holds the token that who looks must enter.", default=None
    ),
    bootstrap: TopologyBootstrap = None,
    *,
    access: WorkerAccess,
) -> None:
    """Serve a page about all workers of a merge, to look at and to act from, until Ctrl-C.

    It only reads, unless who looks enters the control token. With a TOPOLOGY it also shows evidence
    from Kafka, and offers dry runs. If URLs are given too, only these are asked.

    Example: `lmerge dashboard topologies/flights.yaml`
    """
    import asyncio

    from lmerge_service.dashboard.polling import Target
    from lmerge_service.dashboard.serving import run
    from lmerge_service.dashboard.watching import Watched

    warnings_only()
    given = watched or [AT]
    urls = [address_of(each) for each in given if "://" in each]
    paths = [Path(each) for each in given if "://" not in each]
    topologies = _loaded(paths, bootstrap)
    asked = {at: access.settings(at) for at in urls} or dict(_asked(paths, topologies, access))
    if not asked:
        raise ConfigurationError(f"{', '.join(map(str, paths))}: there is no worker to ask")
    targets = [Target(at, settings) for at, settings in asked.items()]
    where = _where(host, port, name or [], tls_certificate, login_token_file)
    by_output = {each.output.topic: (each, str(path)) for each, path in topologies}
    watching = Watched(targets, by_output, somebody())

    def started(address: str) -> None:
        typer.echo(f"the dashboard is at {address}")
        sys.stdout.flush()

    asyncio.run(run(watching, where, started))


def _loaded(paths: Sequence[Path], bootstrap: str | None) -> "list[tuple[Topology, Path]]":
    """The topologies, and those that `lmerge up` starts with them, each with its file."""
    from lmerge_service.config import topology

    found: dict[Path, Topology] = {}

    def load(path: Path) -> None:
        if path in found:
            return
        found[path] = loaded = topology.load(path, bootstrap=bootstrap)
        for other in () if loaded.up is None else loaded.up.merges:
            load((path.parent / other).resolve())

    for path in paths:
        load(path.resolve())
    return [(each, path) for path, each in found.items()]


def _asked(
    paths: Sequence[Path], topologies: "Sequence[tuple[Topology, Path]]", access: WorkerAccess
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Workers, and queries of what is up, by address, each with the settings of its HTTP client."""
    from lmerge_service.local.up.runs import run_of

    runs = [found[1] for path in paths if (found := run_of(path)) is not None]
    started = {name: addresses for run in runs for name, addresses in run.workers.items()}
    taken = set[str]()
    for each, path in topologies:
        if access.can_ask(each.http, path):
            for at in started.get(each.name) or _from_its_port_on(each, path, taken):
                yield at, access.settings_of(at, each.http)
    for at in (at for run in runs for at in run.queries):
        yield at, access.settings(at)


def _from_its_port_on(topology: "Topology", path: Path, taken: set[str]) -> Iterator[str]:
    """Where a topology's workers are if nothing else has its ports but workers that are `taken`."""
    http, found = topology.http, list[str]()
    workers = 1 if topology.up is None else topology.up.workers
    if not http.port and workers:
        raise ConfigurationError(
            f"{path}: http.port: it is any free one: name the workers by their addresses"
        )
    host = "127.0.0.1" if http.host in {"0.0.0.0", "::"} else http.host  # noqa: S104 - not bound
    host = f"[{host}]" if ":" in host else host
    for port in range(http.port, 65_536):
        if len(found) == workers:
            break
        at = f"{'http' if http.tls is None else 'https'}://{host}:{port}"
        if at not in taken:
            found.append(at)
    taken.update(found)
    yield from found


def _where(
    host: str, port: int, names: Sequence[str], certificate: Path | None, token: Path | None
) -> "Http":
    from pydantic import ValidationError

    from lmerge_service.config.http import Http

    if host not in _LOOPBACK and (certificate is None or token is None):
        raise typer.BadParameter(
            f"--host {host} can be reached by others: that needs --tls-certificate, so that nobody "
            "listens in, and --login-token-file, so that it is known who looks"
        )
    given: dict[str, Any] = {"host": host, "port": port, "names": names}
    if certificate is not None:
        given["tls"] = {"certificate": certificate}
    if token is not None:
        given["read_token"] = {"file": token}
    try:
        return Http.model_validate(given)
    except ValidationError as error:
        raise ConfigurationError(f"the dashboard: {fault_message(error.errors()[0])}") from None
