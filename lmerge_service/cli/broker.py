"""`lmerge broker`: a local Kafka to try things on, one per directory, that outlives the command."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from lmerge_service.cli.options import BOOTSTRAP, Json

if TYPE_CHECKING:
    from lmerge_service.kafka.broker import LocalBroker

__all__ = ("app",)

app = typer.Typer(
    no_args_is_help=True, help="A real Kafka on this machine, without Docker: start, stop, status."
)

Data: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Where its data, log and settings are; by default broker/ in $LMERGE_HOME, "
        "else in ~/.local/state/lmerge.",
    ),
]


@app.command()
def start(
    port: Annotated[
        int,
        typer.Option(
            min=0,
            max=65_535,
            metavar="PORT",
            help="Port on 127.0.0.1; 0 takes the last one, else 9092, else any free one.",
        ),
    ] = 0,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Start it in the background, wait until it answers, and say where it is.

    The data of an earlier start are served again. Topics are not made by merely using them.

    Example: `lmerge broker start --port 9092`, then
    `lmerge run topologies/flights.yaml --bootstrap 127.0.0.1:9092`
    """
    broker = _broker(data, port)
    already = broker.running
    broker.start()
    _tell(broker, "is running already" if already else "is up", as_json=as_json)


@app.command()
def status(data: Data = None, as_json: Json = False) -> None:
    """Say whether it runs and where; the exit code is 0 if it runs, 1 if not."""
    broker = _broker(data)
    if broker.running:
        _tell(broker, "is running", as_json=as_json)
        return
    typer.echo('{"running": false}' if as_json else f"no broker runs in {broker.directory}")
    raise typer.Exit(1)


@app.command()
def stop(data: Data = None) -> None:
    """Stop it; its data stay."""
    broker = _broker(data)
    if not broker.running:
        typer.echo(f"no broker runs in {broker.directory}")
        return
    pid = broker.pid
    broker.stop()
    typer.echo(f"stopped (process {pid}); its data stay in {broker.directory}")


@app.command()
def clean(
    data: Data = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Remove its data: every topic and consumer group. Refuses while it runs."""
    broker = _broker(data)
    if not (broker.running or yes):
        typer.confirm(f"Remove all topics in {broker.directory}?", abort=True)
    broker.clean()
    typer.echo(f"removed what the broker kept in {broker.directory}")


def _broker(data: Path | None, port: int = 0) -> "LocalBroker":
    from lmerge_service.kafka.broker import LocalBroker, default_directory  # slow to import

    return LocalBroker(data or default_directory(), port, detached=True)


def _tell(broker: "LocalBroker", verdict: str, *, as_json: bool) -> None:
    facts = {
        "bootstrap": broker.bootstrap,
        "pid": broker.pid,
        "log": str(broker.log),
        "data": str(broker.directory),
        "java": broker.java,
    }
    if as_json:
        typer.echo(json.dumps({"running": True, **facts}))
        return
    typer.echo(f"Kafka {verdict} at {broker.bootstrap}")
    for name in ("pid", "log", "data", "java"):
        typer.echo(f"  {name:<5}{facts[name]}")
    if broker.bootstrap != BOOTSTRAP:
        typer.echo(f"commands ask {BOOTSTRAP} unless: export LMERGE_BOOTSTRAP={broker.bootstrap}")
