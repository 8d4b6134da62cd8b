"""Options that several commands share."""

import logging
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from lmerge_service.errors import ConfigurationError, fault_message

if TYPE_CHECKING:
    from lmerge_service.config.topology import Topology
    from lmerge_service.kafka.client import Connection

__all__ = (
    "BOOTSTRAP",
    "TOPIC",
    "Bootstrap",
    "HttpPort",
    "Json",
    "KafkaConfig",
    "Nfc",
    "TopologyBootstrap",
    "address",
    "at_port",
    "check_topic",
    "connection",
    "controlled_by",
    "to_stderr",
    "warnings_only",
)

BOOTSTRAP = "127.0.0.1:9092"
TOPIC = "kafka:"
"""Before a topic's name where files may stand as well."""

_ADDRESS = re.compile(r"(\[[0-9a-fA-F:]+\]|[^\s,:\[\]]+)(:\d{1,5})?")
_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")


def address(text: str | None) -> str | None:
    """Checks HOST:PORT[,HOST:PORT…] before any connection is tried."""
    if text is not None and not all(_ADDRESS.fullmatch(each) for each in text.split(",")):
        raise typer.BadParameter(f"{text!r} is not HOST:PORT")
    return text


Bootstrap: TypeAlias = Annotated[
    str | None,
    typer.Option(
        envvar="LMERGE_BOOTSTRAP",
        metavar="HOST:PORT",
        callback=address,
        help="Where Kafka is.",
        show_default=BOOTSTRAP,
    ),
]
KafkaConfig: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.yaml",
        help="How Kafka is reached: a file with a topology's `kafka` section (TLS, SASL).",
    ),
]
TopologyBootstrap: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        callback=address,
        help="Where Kafka is, instead of the file's word and of LMERGE_BOOTSTRAP.",
    ),
]
"""Of the commands that are given a topology."""

HttpPort: TypeAlias = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=65_535,
        metavar="PORT",
        help="Of the HTTP API, for commands and Prometheus; 0 takes a free one.",
    ),
]
"""Of the commands that merge; for `at_port`. The default is the command's."""

Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]

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


def check_topic(name: str) -> None:
    """Refuses what Kafka would refuse.

    Raises:
        ConfigurationError: `name` is no name of a topic.
    """
    if not _TOPIC_NAME.fullmatch(name) or name in {".", ".."}:
        raise ConfigurationError(
            f"{name!r} is no name of a topic: 1 to 249 of the characters a-z A-Z 0-9 . _ -"
        )


def connection(bootstrap: str | None, kafka_config: Path | None) -> "Connection":
    """How the client commands reach Kafka.

    Raises:
        ConfigurationError: the file is wrong.
    """
    from lmerge_service.config.topology import load_kafka
    from lmerge_service.kafka.client import Connection  # slow to import
    from lmerge_service.kafka.connection import connection_of

    if kafka_config is None:
        return Connection(bootstrap or BOOTSTRAP)
    return connection_of(load_kafka(kafka_config, bootstrap=bootstrap))


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


def at_port(loaded: "Topology", port: int | None) -> "Topology":
    """The topology with its HTTP API at this port; None: where the topology has it."""
    if port is None:
        return loaded
    return loaded.model_copy(update={"http": loaded.http.model_copy(update={"port": port})})


def controlled_by(loaded: "Topology", token: Path | None) -> "Topology":
    """The topology with the control token in this file; None: where the topology has it.

    Raises:
        ConfigurationError: the file holds no token that will do.
    """
    if token is None:
        return loaded
    from pydantic import ValidationError

    from lmerge_service.config.topology import Http

    http = loaded.http.model_dump() | {"control_token": {"file": token}}
    try:
        return loaded.model_copy(update={"http": Http.model_validate(http)})
    except ValidationError as error:
        text = fault_message(error.errors()[0])
        raise ConfigurationError(f"--control-token {token}: {text}") from None
