"""Options that several commands share, one by one or in groups.

A group is a dataclass whose fields are options, or groups. A command of an `App` that takes one as
a parameter has these options, and is given the group.
"""

import functools
import inspect
import logging
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypeVar

import typer

from lmerge_service.config.topic_names import is_topic_name
from lmerge_service.errors import ConfigurationError, fault_message

if TYPE_CHECKING:
    from lmerge_service.config.topology import Kafka, Topology
    from lmerge_service.formats.bulk import Rule
    from lmerge_service.kafka.cluster import Cluster
    from lmerge_service.kafka.connection import Connection

__all__ = (
    "BOOTSTRAP",
    "TOPIC",
    "App",
    "Bootstrap",
    "DropNulls",
    "EqualityOptions",
    "HttpPort",
    "Json",
    "KafkaConfig",
    "KafkaOptions",
    "Nfc",
    "Partitions",
    "Seed",
    "TopologyBootstrap",
    "TopologyOptions",
    "address",
    "argument",
    "at_port",
    "check_topic",
    "cluster_of",
    "controlled_by",
    "flag",
    "option",
    "to_stderr",
    "topic_of",
    "warnings_only",
)

C = TypeVar("C", bound=Callable[..., Any])

BOOTSTRAP = "127.0.0.1:9092"
TOPIC = "kafka:"
"""Before a topic's name where files may stand as well."""

_ADDRESS = re.compile(r"(\[[0-9a-fA-F:]+\]|[^\s,:\[\]]+)(:\d{1,5})?")


# --- groups ---------------------------------------------------------------------------------------


class App(typer.Typer):
    """Commands, whose parameters may be groups."""

    def command(self, name: str | None = None, **settings: Any) -> Callable[[C], C]:
        register = super().command(name, **settings)

        def add(command: C) -> C:
            register(_without_groups(command))
            return command

        return add


def _without_groups(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command as typer knows it, with a parameter for each single option."""
    declared = inspect.signature(command).parameters.values()
    groups = {each.name: each.annotation for each in declared if is_dataclass(each.annotation)}

    @functools.wraps(command)
    def called(**given: Any) -> Any:
        return command(**{name: _made(group, given) for name, group in groups.items()}, **given)

    parameters = [
        single
        for each in declared
        for single in (_options_of(each.annotation) if each.name in groups else [each])
    ]
    keywords = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters]
    called.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]
    called.__annotations__ = {each.name: each.annotation for each in keywords}
    return called


def _options_of(group: Any) -> Iterator[inspect.Parameter]:
    for each in fields(group):
        if is_dataclass(each.type):
            yield from _options_of(each.type)
            continue
        default = inspect.Parameter.empty if each.default is MISSING else each.default
        kind = inspect.Parameter.KEYWORD_ONLY
        yield inspect.Parameter(each.name, kind, default=default, annotation=each.type)


def _made(group: Any, given: dict[str, Any]) -> Any:
    """The group of the options `given`, which are taken from there."""
    return group(
        **{
            each.name: _made(each.type, given) if is_dataclass(each.type) else given.pop(each.name)
            for each in fields(group)
        }
    )


# --- single options -------------------------------------------------------------------------------


def option(
    metavar: str,
    text: str,
    *names: str,
    default: Any = ...,
    panel: str | None = None,
    **settings: Any,
) -> Any:
    """An option with a value, required unless there is a default; its names, where they are not the
    parameter's."""
    return typer.Option(
        default, *names, metavar=metavar, help=text, rich_help_panel=panel, **settings
    )


def flag(text: str, *names: str, default: Any = False, panel: str | None = None) -> Any:
    """An option without a value, or with one of a few words."""
    return typer.Option(default, *names, help=text, rich_help_panel=panel)


def argument(metavar: str, text: str, *, default: Any = ..., **settings: Any) -> Any:
    """An argument, required unless there is a default."""
    return typer.Argument(default, metavar=metavar, help=text, **settings)


def address(text: str | None) -> str | None:
    """Checks HOST:PORT[,HOST:PORT…] before any connection is tried."""
    if text is not None and not all(_ADDRESS.fullmatch(each) for each in text.split(",")):
        raise typer.BadParameter(f"{text!r} is not HOST:PORT")
    return text


Bootstrap: TypeAlias = Annotated[
    str | None,
    option(
        "HOST:PORT",
        "Where Kafka is.",
        envvar="LMERGE_BOOTSTRAP",
        callback=address,
        show_default=BOOTSTRAP,
    ),
]
KafkaConfig: TypeAlias = Annotated[
    Path | None,
    option(
        "FILE.yaml", "How Kafka is reached: a file with a topology's `kafka` section (TLS, SASL)."
    ),
]
TopologyBootstrap: TypeAlias = Annotated[
    str | None,
    option(
        "HOST:PORT",
        "Where Kafka is; overrides the file and LMERGE_BOOTSTRAP.",
        callback=address,
    ),
]
"""Of the commands that are given a topology."""

HttpPort: TypeAlias = Annotated[
    int | None,
    option(
        "PORT",
        "Of the HTTP API, for commands and Prometheus; 0 takes a free one.",
        min=0,
        max=65_535,
    ),
]
"""Of the commands that merge; for `at_port`. The default is the command's."""

Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]

Partitions: TypeAlias = Annotated[
    int, option("N", "Of a topic that is made here.", min=1, max=1000)
]
Seed: TypeAlias = Annotated[int, option("N", "Equal seeds give equal results.")]
Nfc: TypeAlias = Annotated[
    bool,
    typer.Option("--nfc", help="Normalise strings to NFC first, as a topology with `nfc: true`."),
]
DropNulls: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--drop-nulls",
        help="Leave out members that are null first, as a topology with `drop_nulls: true`.",
    ),
]


# --- groups of several commands -------------------------------------------------------------------


@dataclass(frozen=True)
class KafkaOptions:
    """Where Kafka is, and how it is reached."""

    bootstrap: Bootstrap = None
    kafka_config: KafkaConfig = None

    def place(self) -> "Kafka | str":
        """As Spark's sources and sinks take it.

        Raises:
            ConfigurationError: the file is wrong.
        """
        warnings_only()
        if self.kafka_config is None:
            return self.bootstrap or BOOTSTRAP
        from lmerge_service.config.topology import load_kafka

        return load_kafka(self.kafka_config, bootstrap=self.bootstrap)

    def connection(self) -> "Connection":
        """As clients take it.

        Raises:
            ConfigurationError: the file is wrong.
        """
        from lmerge_service.kafka.connection import (
            Connection,  # slow to import
            connection_of,
        )

        place = self.place()
        return Connection(place) if isinstance(place, str) else connection_of(place)


@dataclass(frozen=True)
class EqualityOptions:
    """When two payloads are equal."""

    nfc: Nfc = False
    drop_nulls: DropNulls = False

    @property
    def rule(self) -> "Rule":
        from lmerge_service.formats.bulk import Rule

        return Rule(nfc=self.nfc, drop_nulls=self.drop_nulls)


@dataclass(frozen=True)
class TopologyOptions:
    """A topology, and where its Kafka is."""

    path: Annotated[Path, argument("TOPOLOGY.yaml", "What is merged, and where to.")]
    bootstrap: TopologyBootstrap = None

    def load(self) -> "Topology":
        """The topology.

        Raises:
            ConfigurationError: the file is wrong.
        """
        from lmerge_service.config import topology

        return topology.load(self.path, bootstrap=self.bootstrap)


# --- what they are used for -----------------------------------------------------------------------


def check_topic(name: str) -> None:
    """Refuses what Kafka would refuse.

    Raises:
        ConfigurationError: `name` is no name of a topic.
    """
    if not is_topic_name(name):
        raise ConfigurationError(
            f"{name!r} is no name of a topic: 1 to 249 of the characters a-z A-Z 0-9 . _ -"
        )


def topic_of(place: str) -> str | None:
    """The topic of kafka:TOPIC; None: the place is a file.

    Raises:
        ConfigurationError: it is no name of a topic.
    """
    if not place.startswith(TOPIC):
        return None
    check_topic(topic := place.removeprefix(TOPIC))
    return topic


def warnings_only(least: int = logging.WARNING) -> None:
    """Of what we log, warnings reach the user, on standard error; what libraries log does not
    (`cli.main`). Of every command that uses Kafka or Spark, but those that print more (`run`) or
    less (`demo`)."""
    import structlog

    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(least), logger_factory=to_stderr
    )


def to_stderr(*_: object) -> Any:
    """Where our log goes: standard error as it is when a line is logged, not as it was once."""
    import structlog

    return structlog.PrintLogger(sys.stderr)


def cluster_of(loaded: "Topology") -> "Cluster":
    """The clients of a topology's Kafka."""
    from lmerge_service.kafka.cluster import Cluster
    from lmerge_service.kafka.connection import connection_of

    warnings_only()
    return Cluster(connection_of(loaded.kafka))


def at_port(loaded: "Topology", port: int | None) -> "Topology":
    """The topology with its HTTP API at this port; None: where the topology has it."""
    return loaded if port is None else _with_http(loaded, {"port": port})


def controlled_by(loaded: "Topology", token: Path | None) -> "Topology":
    """The topology with the control token in this file; None: where the topology has it.

    Raises:
        ConfigurationError: the file holds no token that will do.
    """
    if token is None:
        return loaded
    from pydantic import ValidationError

    try:
        return _with_http(loaded, {"control_token": {"file": token}})
    except ValidationError as error:
        text = fault_message(error.errors()[0])
        raise ConfigurationError(f"--control-token {token}: {text}") from None


def _with_http(loaded: "Topology", changed: Mapping[str, Any]) -> "Topology":
    from lmerge_service.config.http import Http

    http = Http.model_validate({**loaded.http.model_dump(), **changed})
    return loaded.model_copy(update={"http": http})
