"""`lmerge broker`: a local Kafka to try things on, one per directory, that outlives the command."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from lmerge_service.cli.options import BOOTSTRAP, Json, flag, option
from lmerge_service.cli.words import fields_of, print_json
from lmerge_service.errors import ConfigurationError
from lmerge_service.signals import orderly_end, raise_exit

if TYPE_CHECKING:
    from lmerge_service.local.broker import LocalBroker
    from lmerge_service.local.nodes import LocalCluster

__all__ = ("app",)

app = typer.Typer(
    no_args_is_help=True, help="A real Kafka on this machine, without Docker: start, stop, status."
)

Data: TypeAlias = Annotated[
    Path | None,
    option(
        "DIR",
        "Where its data, log and settings are; by default broker/ in $LMERGE_HOME, "
        "else in ~/.local/state/lmerge.",
    ),
]
Node: TypeAlias = Annotated[
    int | None,
    option("N", "One node of several alone, by its number from 1.", min=1),
]


@app.command()
def start(
    port: int = option(
        "PORT",
        "Port on 127.0.0.1; 0 takes the last one, else 9092, else any free one. Further "
        "nodes have the ports that follow.",
        min=0,
        max=65_535,
        default=0,
    ),
    nodes: int | None = option(
        "1|3",
        "How many brokers; by default as many as DIR has already, else 1. With 3, each "
        "topic is replicated three times and written when two replicas have it.",
        default=None,
    ),
    node: Node = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Start it in the background, wait until it answers, and print where it is.

    The data of an earlier start are served again. Topics are not made by merely using them.

    Example: `lmerge broker start --port 9092`, then
    `lmerge run topologies/flights.yaml --bootstrap 127.0.0.1:9092`
    """
    if nodes not in (None, 1, 3):
        raise ConfigurationError(f"--nodes {nodes}: a local Kafka has 1 node or 3")
    kafka = _kafka(data, node, nodes, port)
    already = all(each.running for each in _brokers(kafka, node).values())
    with orderly_end(raise_exit):  # what is not ready yet is ended
        answers = _start(kafka, node)
    verdict = "is running already" if already else "is up" if answers else "is started"
    _report(_facts(kafka, node), verdict, as_json=as_json)
    if not (answers or as_json):
        typer.echo("it answers when most of its nodes run")


@app.command()
def status(node: Node = None, data: Data = None, as_json: Json = False) -> None:
    """Print whether and where it runs; exit code 0 if it runs, with all its nodes, else 1."""
    kafka = _kafka(data, node)
    facts = _facts(kafka, node)
    if facts["running"]:
        _report(facts, "is running", as_json=as_json)
        return
    if "nodes" in facts or as_json:
        _report(facts, "is partly down" if kafka.running else "is down", as_json=as_json)
    else:
        typer.echo(f"no broker runs in {kafka.directory}")
    raise typer.Exit(1)


@app.command()
def stop(node: Node = None, data: Data = None) -> None:
    """Stop it, or one node of it; its data stay."""
    kafka = _kafka(data, node)
    brokers = _brokers(kafka, node).values()
    pids = [str(broker.pid) for broker in brokers if broker.running]
    for broker in brokers:
        if not broker.running:
            typer.echo(f"no broker runs in {broker.directory}")
    _stop(kafka, node)
    if pids:
        named = f"process{'es' if len(pids) > 1 else ''} {', '.join(pids)}"
        typer.echo(f"stopped ({named}); its data stay in {kafka.directory}")


@app.command()
def clean(
    data: Data = None,
    yes: bool = flag("Do not ask.", "--yes", "-y"),
) -> None:
    """Remove its data: every topic and consumer group. Refuses while it runs."""
    kafka = _kafka(data)
    if not (kafka.running or yes):
        typer.confirm(f"Remove all topics in {kafka.directory}?", abort=True)
    kafka.clean()
    typer.echo(f"removed what the broker kept in {kafka.directory}")


def _kafka(
    data: Path | None, node: int | None = None, nodes: int | None = None, port: int = 0
) -> "LocalBroker | LocalCluster":
    """What the directory has, or is to have: one broker, or several nodes.

    Raises:
        ConfigurationError: one node is meant, and there are none.
    """
    from lmerge_service.local.broker import LocalBroker, default_directory  # slow to import
    from lmerge_service.local.nodes import LocalCluster, is_cluster

    directory = data or default_directory()
    if is_cluster(directory) or nodes == 3:
        return LocalCluster(directory, nodes, port, detached=True)
    if node is not None:
        raise ConfigurationError(
            f"--node {node}: {directory} has no nodes; `lmerge broker start --nodes 3` starts "
            "three brokers, in a directory of their own"
        )
    return LocalBroker(directory, port, detached=True)


def _brokers(
    kafka: "LocalBroker | LocalCluster", node: int | None
) -> "dict[int, LocalBroker] | dict[None, LocalBroker]":
    """One node, or all, by number; one broker that is no node has none."""
    from lmerge_service.local.broker import LocalBroker

    if isinstance(kafka, LocalBroker):
        return {None: kafka}
    return dict(kafka.nodes) if node is None else {node: kafka.node(node)}


def _start(kafka: "LocalBroker | LocalCluster", node: int | None) -> bool:
    """Whether it answers now."""
    from lmerge_service.local.nodes import LocalCluster

    if isinstance(kafka, LocalCluster):
        return kafka.start(node)
    kafka.start()
    return True


def _stop(kafka: "LocalBroker | LocalCluster", node: int | None) -> None:
    from lmerge_service.local.nodes import LocalCluster

    if isinstance(kafka, LocalCluster):
        kafka.stop(node)
    else:
        kafka.stop()


def _facts(kafka: "LocalBroker | LocalCluster", node: int | None) -> dict[str, Any]:
    facts = {number: _facts_of(each) for number, each in _brokers(kafka, node).items()}
    if None in facts:
        return facts[None]
    return {
        "running": all(each["running"] for each in facts.values()),
        "bootstrap": kafka.bootstrap,
        "data": str(kafka.directory),
        "nodes": [{"node": number, **each} for number, each in facts.items()],
    }


def _facts_of(broker: "LocalBroker") -> dict[str, Any]:
    if not broker.running:
        return {"running": False}
    known = fields_of(broker, "running", "bootstrap", "pid", "java")
    return {**known, "log": str(broker.log), "data": str(broker.directory)}


def _report(facts: dict[str, Any], verdict: str, *, as_json: bool) -> None:
    if as_json:
        print_json(facts)
        return
    typer.echo(f"Kafka {verdict} at {facts['bootstrap'] or 'no port yet'}")
    for node in facts.get("nodes", ()):
        state = "is down"
        if node["running"]:
            state = f"at {node['bootstrap']} (pid {node['pid']}, log {node['log']})"
        typer.echo(f"  node {node['node']} {state}")
    for name in ("pid", "log", "data", "java"):
        if name in facts:
            typer.echo(f"  {name:<5}{facts[name]}")
    if facts["bootstrap"] not in ("", BOOTSTRAP):
        typer.echo(f"commands ask {BOOTSTRAP} unless: export LMERGE_BOOTSTRAP={facts['bootstrap']}")
