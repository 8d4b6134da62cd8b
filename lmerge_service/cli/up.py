"""`lmerge up` and `lmerge down`: all that a topology names, as one thing.

Who owns what
    `up` owns the terminal while it runs, and by the supervisor all that it starts. Ctrl-C and
    SIGTERM end it in order; pressed again, Ctrl-C leaves what is not yet ended to `lmerge down`.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lmerge_service.cli.options import (
    Json,
    TopologyBootstrap,
    argument,
    flag,
    option,
    warnings_only,
)
from lmerge_service.cli.words import report
from lmerge_service.cli.workers import WorkerAccess
from lmerge_service.errors import ConfigurationError, LMergeError, TransportError, single_error
from lmerge_service.signals import cancelled_by_signal

if TYPE_CHECKING:
    from lmerge_service.local.up.plan import ProcessPlan
    from lmerge_service.local.up.runs import UpRun
    from lmerge_service.local.up.supervisor import Supervisor

__all__ = ("down", "up")

Topology = Annotated[Path, argument("TOPOLOGY.yaml", "With a section `up` that lists what.")]


def up(
    path: Topology,
    detach: bool = flag("Return once all is started, and let it run.", "--detach", "-d"),
    bootstrap: TopologyBootstrap = None,
    dashboard: bool = flag(
        "With a page about the workers, if the extra `dashboard` is installed.",
        "--dashboard/--no-dashboard",
        default=True,
    ),
    ca: Path | None = option(
        "FILE",
        "Who signs the certificates of workers with TLS. [default: only these are trusted]",
        default=None,
    ),
    certificate: Path | None = option(
        "FILE", "Our own certificate with its key, where these ask for one.", default=None
    ),
    as_json: Json = False,
) -> None:
    """Start all that a topology names, and show it live until Ctrl-C, which ends all of it.

    Its section `up` names a local Kafka, workers, feeds and replicas; what fails is started again.
    Logs are in up/NAME below $LMERGE_HOME, else below ~/.local/state/lmerge.

    Example: `lmerge up topologies/high-availability-plain.yaml`
    """
    import asyncio
    import os

    from lmerge_service.cli.dashboard import PORT
    from lmerge_service.dashboard.installed import is_installed
    from lmerge_service.local.up.plan import plan
    from lmerge_service.local.up.runs import folder_of

    warnings_only()
    port = PORT if dashboard and is_installed() else None
    access, trust = WorkerAccess(ca=ca, certificate=certificate), list[str]()
    for name, file in (("--ca", ca), ("--certificate", certificate)):
        trust += [] if file is None else [name, str(file.absolute())]
    planned = plan(
        path, bootstrap or os.environ.get("LMERGE_BOOTSTRAP"), dashboard_port=port, trust=trust
    )
    settings = list(_statuses(planned, access))
    folder = folder_of(planned.name)
    if detach:
        more = [*(["--bootstrap", bootstrap] if bootstrap else [])]
        more += [*([] if dashboard else ["--no-dashboard"]), *trust]
        _report_up(_detached(planned, folder, more), folder, as_json=as_json)
        return
    folder.mkdir(parents=True, exist_ok=True)
    raise typer.Exit(asyncio.run(_attended(planned, folder, settings, as_json=as_json)))


def down(path: Topology, as_json: Json = False) -> None:
    """End all that `lmerge up TOPOLOGY.yaml` has started, and nothing else.

    Also what goes on after `lmerge up` itself was killed. Logs stay.
    """
    from lmerge_service.local.up.runs import end, run_of

    found = run_of(path)
    if found is None:
        if not path.exists():
            raise ConfigurationError(f"{path}: there is no such file, and nothing of it is up")
        report({"was_up": False}, f"nothing of {path} is up", as_json=as_json)
        return
    folder, run = found
    left = end(folder, run)
    how = f"; its `lmerge up` had left {left} processes" if left else ""
    line = f"{run.name} is down{how}; logs are in {folder}"
    document = {"was_up": True, "name": run.name, "left_by_supervisor": left}
    report(document, line, as_json=as_json)


# --- in the foreground ----------------------------------------------------------------------------


async def _attended(
    plan: "ProcessPlan", folder: Path, settings: Sequence[Mapping[str, Any]], *, as_json: bool
) -> int:
    """The exit code: 0 when stopped by a signal, or all has ended well. `settings` are those of
    HTTP clients of the workers."""
    import asyncio

    from lmerge_service.local.up.supervisor import ProcessState, Supervisor

    task = asyncio.current_task()
    assert task is not None
    typer.echo(f"starting {plan.name} …", err=as_json)
    stopped = False
    try:
        with cancelled_by_signal(task), single_error():
            async with Supervisor(plan, folder) as supervisor:
                try:
                    await _show(supervisor, settings, as_json=as_json)
                except asyncio.CancelledError:
                    stopped = True
                typer.echo(f"ending {plan.name} …", err=as_json)
    except asyncio.CancelledError:
        stopped = True  # while Kafka was starting
    typer.echo(f"{plan.name} is down; logs are in {folder}", err=as_json)
    if stopped:
        return 0
    failed = [life.name for life in supervisor.lives.values() if life.state is ProcessState.FAILED]
    if failed:
        raise LMergeError(f"{', '.join(failed)} failed, and nothing runs any more: see {folder}")
    return 0


async def _show(
    supervisor: "Supervisor", settings: Sequence[Mapping[str, Any]], *, as_json: bool
) -> None:
    """Shows how things are, each second, until nothing runs any more."""
    import asyncio

    from lmerge_service.cli import up_shown as shown
    from lmerge_service.cli.watch import snapshots

    addresses = [each["base_url"] for each in settings]
    with shown.view(supervisor, as_json=as_json) as show:
        async for workers in snapshots(addresses, settings, asyncio.Event()):
            supervisor.check()
            show(workers)
            if supervisor.over:
                return


def _statuses(plan: "ProcessPlan", access: WorkerAccess) -> Iterator[dict[str, Any]]:
    """How workers are asked; of those that we cannot ask, a line is printed.

    Raises:
        ConfigurationError: a file of `access` cannot be read or holds something else.
    """
    for merge in plan.merges:
        if access.can_ask(merge.topology.http, merge.topology.name):
            for address in merge.workers.values():
                yield access.settings_of(address, merge.topology.http)


# --- in the background ----------------------------------------------------------------------------


def _detached(plan: "ProcessPlan", folder: Path, options: Sequence[str]) -> "UpRun":
    """Starts another `lmerge up` in the background; what it has written down when all is started.

    Raises:
        LMergeError: it has ended instead; the message is its last line.
    """
    import os
    import time

    from lmerge_service.local import jvm
    from lmerge_service.local.processes import LMERGE
    from lmerge_service.local.up.runs import read

    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "up.log"
    before = log.stat().st_size if log.exists() else 0
    command = [*LMERGE, "up", str(plan.path), *options]
    pid, _ = jvm.spawn(command, Path.cwd(), log, dies_with_us=False)
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            with log.open(encoding="utf-8", errors="replace") as output:
                output.seek(before)
                raise _failure(output.read(), os.waitstatus_to_exitcode(status), log)
        run = read(folder)
        if run is not None and run.supervisor.pid == pid and run.ready:
            return run
        time.sleep(0.05)


def _failure(output: str, code: int, log: Path) -> LMergeError:
    """Its error, as ours."""
    errors = [line for line in output.splitlines() if line.startswith("error: ")]
    kinds: Sequence[type[LMergeError]] = (ConfigurationError, TransportError)
    kind = next((each for each in kinds if each.exit_code == code), LMergeError)
    return kind(errors[-1].removeprefix("error: ") if errors else f"it ended with {code}: {log}")


def _report_up(run: "UpRun", folder: Path, *, as_json: bool) -> None:
    import msgspec

    line = (
        f"{run.name} is up, on Kafka at {run.bootstrap}: {len(run.processes)} processes; logs are "
        f"in {folder}; `lmerge down {run.path}` ends it"
    )
    lines = [f"  {name:<24} process {known.pid}" for name, known in run.processes.items()]
    if run.dashboard:
        lines.append(f"the dashboard is at {run.dashboard}")
    report(msgspec.to_builtins(run) | {"folder": str(folder)}, line, *lines, as_json=as_json)
    sys.stdout.flush()
