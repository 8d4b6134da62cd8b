"""`lmerge run`: the worker."""

import logging
import sys
from pathlib import Path

from lmerge_service.cli.options import (
    HttpPort,
    TopologyOptions,
    at_port,
    controlled_by,
    flag,
    option,
    to_stderr,
)

__all__ = ("log_to_stderr", "run")


def run(
    topology: TopologyOptions,
    http_port: HttpPort = None,
    control_token: Path | None = option(
        "FILE",
        "Holds the token of who may decide, instead of the file's http.control_token.",
        default=None,
    ),
    standby: bool = flag(
        "Only follow, and lead when no other worker is there to do it.", "--standby"
    ),
    json: bool = flag("Log as JSON, one object a line.", "--json"),
) -> None:
    """Merge a topology's replica topics into its output topic, exactly once, until SIGTERM.

    Restart it whenever you like, kill -9 included: it continues where the last commit ended.
    Without --http-port the HTTP API is where the file has it.

    Example: `lmerge run topologies/flights.yaml --bootstrap 127.0.0.1:9092`
    """
    import asyncio

    from lmerge_service.service import process

    loaded = controlled_by(at_port(topology.load(), http_port), control_token)
    log_to_stderr(as_json=json)
    asyncio.run(process.run(loaded, standby=standby))


def log_to_stderr(*, as_json: bool) -> None:
    """Our log goes to standard error, all of it."""
    import structlog

    renderer: structlog.types.Processor = (
        structlog.processors.JSONRenderer()
        if as_json
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.NOTSET),
        logger_factory=to_stderr,
    )
