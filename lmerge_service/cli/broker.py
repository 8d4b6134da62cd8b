"""`lmerge broker`: a local Kafka to try things on, one per directory, that outlives the command."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from lmerge_service.cli.options import BOOTSTRAP, Json
from lmerge_service.errors import ConfigurationError
from lmerge_service.signals import orderly_end, raise_exit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lmerge_service.local.broker import LocalBroker
    from lmerge_service.local.nodes import LocalCluster

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
Node: TypeAlias = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="One node of several alone, by its number from 1."),
]


@app.command()
def start(
    port: Annotated[
        int,
        typer.Option(
            min=0,
            max=65_535,
            metavar="PORT",
            help="Port on 127.0.0.1; 0 takes the last one, else 9092, else any free one. Further "
            "nodes have the ports that follow.",
        ),
    ] = 0,
    nodes: Annotated[
        int | None,
        typer.Option(
            metavar="1|3",
            help="How many brokers; by default as many as DIR has already, else 1. With 3, each "
            "topic is replicated three times and written when two replicas have it.",
        ),
    ] = None,
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
    cluster = _cluster(data, nodes, port)
    if cluster is not None:
        already = all(each.running for each in _chosen(cluster, node).values())
        with orderly_end(raise_exit):  # nodes that are not ready yet are ended
            answers = cluster.start(node)
        verdict = "is running already" if already else "is up" if answers else "is started"
        _report(_facts_of_nodes(cluster, node), verdict, as_json=as_json)
        if not (answers or as_json):
            typer.echo(f"it answers when most of its {len(cluster.nodes)} nodes run")
        return
    broker = _broker(data, port, node)
    already = broker.running
    with orderly_end(raise_exit):  # what is not ready yet is ended
        broker.start()
    _report(_facts(broker), "is running already" if already else "is up", as_json=as_json)


@app.command()
def status(node: Node = None, data: Data = None, as_json: Json = False) -> None:
    """Print whether and where it runs; exit code 0 if it runs, with all its nodes, else 1."""
    cluster = _cluster(data)
    if cluster is not None:
        facts = _facts_of_nodes(cluster, node)
        verdict = (
            "is running"
            if facts["running"]
            else "is down"
            if not cluster.running
            else "is partly down"
        )
        _report(facts, verdict, as_json=as_json)
        raise typer.Exit(0 if facts["running"] else 1)
    broker = _broker(data, node=node)
    if broker.running:
        _report(_facts(broker), "is running", as_json=as_json)
        return
    typer.echo('{"running": false}' if as_json else f"no broker runs in {broker.directory}")
    raise typer.Exit(1)


@app.command()
def stop(node: Node = None, data: Data = None) -> None:
    """Stop it, or one node of it; its data stay."""
    cluster = _cluster(data)
    brokers = [_broker(data, node=node)] if cluster is None else _chosen(cluster, node).values()
    pids = [broker.pid for broker in brokers if broker.running]
    for broker in brokers:
        if not broker.running:
            typer.echo(f"no broker runs in {broker.directory}")
    if cluster is not None:
        cluster.stop(node)
    else:
        for broker in brokers:
            broker.stop()
    if pids:
        named = f"process{'es' if len(pids) > 1 else ''} {', '.join(map(str, pids))}"
        typer.echo(f"stopped ({named}); its data stay in {_directory(data)}")


@app.command()
def clean(
    data: Data = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Remove its data: every topic and consumer group. Refuses while it runs."""
    kafka = _cluster(data) or _broker(data)
    if not (kafka.running or yes):
        typer.confirm(f"Remove all topics in {kafka.directory}?", abort=True)
    kafka.clean()
    typer.echo(f"removed what the broker kept in {kafka.directory}")


def _directory(data: Path | None) -> Path:
    from lmerge_service.local.broker import default_directory  # slow to import

    return data or default_directory()


def _cluster(data: Path | None, nodes: int | None = None, port: int = 0) -> "LocalCluster | None":
    """Several nodes, if the directory has them or is to have them."""
    from lmerge_service.local.nodes import LocalCluster, is_cluster

    directory = _directory(data)
    if is_cluster(directory) or nodes == 3:
        return LocalCluster(directory, nodes, port, detached=True)
    return None


def _broker(data: Path | None, port: int = 0, node: int | None = None) -> "LocalBroker":
    from lmerge_service.local.broker import LocalBroker

    directory = _directory(data)
    if node is not None:
        raise ConfigurationError(
            f"--node {node}: {directory} has no nodes; `lmerge broker start --nodes 3` starts "
            "three brokers, in a directory of their own"
        )
    return LocalBroker(directory, port, detached=True)


def _chosen(cluster: "LocalCluster", node: int | None) -> "Mapping[int, LocalBroker]":
    """One node, or all."""
    return cluster.nodes if node is None else {node: cluster.node(node)}


def _facts(broker: "LocalBroker") -> dict[str, Any]:
    return {
        "running": True,
        "bootstrap": broker.bootstrap,
        "pid": broker.pid,
        "log": str(broker.log),
        "data": str(broker.directory),
        "java": broker.java,
    }


def _facts_of_nodes(cluster: "LocalCluster", node: int | None) -> dict[str, Any]:
    chosen = _chosen(cluster, node)
    return {
        "running": all(each.running for each in chosen.values()),
        "bootstrap": cluster.bootstrap,
        "data": str(cluster.directory),
        "nodes": [
            {"node": number, **(_facts(each) if each.running else {"running": False})}
            for number, each in chosen.items()
        ],
    }


def _report(facts: dict[str, Any], verdict: str, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(facts))
        return
    typer.echo(f"Kafka {verdict} at {facts['bootstrap'] or 'no port yet'}")
    for node in facts.get("nodes", ()):
        typer.echo(f"  node {node['node']} {_line(node)}")
    for name in ("pid", "log", "data", "java"):
        if name in facts:
            typer.echo(f"  {name:<5}{facts[name]}")
    if facts["bootstrap"] not in ("", BOOTSTRAP):
        typer.echo(f"commands ask {BOOTSTRAP} unless: export LMERGE_BOOTSTRAP={facts['bootstrap']}")


def _line(node: dict[str, Any]) -> str:
    if not node["running"]:
        return "is down"
    return f"at {node['bootstrap']} (pid {node['pid']}, log {node['log']})"
