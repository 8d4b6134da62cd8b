"""What commands that ask a worker have in common: which one, as whom, and how a decision is made.

A command is written as a function of the worker, or of a way to decide, and its own options; what
all of them need is put before the user by `asking` and `deciding`. The client is imported when it
is used: help does not wait for it.
"""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Protocol
from urllib.parse import urlsplit

import typer

from lmerge_service.cli.words import print_json, printable

if TYPE_CHECKING:
    from lmerge_service.cli.workers import Worker

__all__ = ("AT", "_WHERE", "Decide", "address_of", "asking", "deciding", "report_decision")

AT: Final = "http://127.0.0.1:8321"


class Decide(Protocol):
    """Requests a decision and reports the answer; fields that are None are left out."""

    def __call__(self, path: str, **body: Any) -> None: ...


def address_of(text: str) -> str:
    """The address of a worker, checked and without a last slash.

    >>> address_of("http://127.0.0.1:8321/")
    'http://127.0.0.1:8321'
    """
    try:
        url = urlsplit(text)
        known = url.scheme in {"http", "https"} and url.hostname and url.port != 0
    except ValueError:
        known = False
    if not known or not text.isascii() or not text.isprintable():
        raise typer.BadParameter(f"{text!r} is no address such as {AT}")
    if url.path not in {"", "/"} or url.query or url.fragment or "@" in url.netloc:
        raise typer.BadParameter(f"{text!r} is more than http://HOST:PORT")
    return text.rstrip("/")


def asking(command: Callable[..., None]) -> Callable[..., None]:
    """The command, whose first parameter is the `Worker`, with the options that select it."""

    @functools.wraps(command)
    def asked(
        *, at: str, token_file: Path | None, ca: Path | None, certificate: Path | None, **rest: Any
    ) -> None:
        from lmerge_service.cli.workers import Worker, settings_of

        with Worker(settings_of(at, token_file, ca, certificate)) as worker:
            command(worker, **rest)

    first, *own = inspect.signature(command, eval_str=False).parameters.values()
    assert first.name == "worker"
    _sign(asked, [*own, *_WHERE])
    return asked


def deciding(command: Callable[..., None]) -> Callable[..., None]:
    """The command, whose first parameter is a `Decide`, with the options of all decisions."""

    def decided(
        worker: "Worker",
        *,
        expects: int | None,
        decision_id: str | None,
        as_json: bool,
        **rest: Any,
    ) -> None:
        def decide(path: str, **body: Any) -> None:
            made = worker.decide(path, {**body, "expects": expects}, decision_id)
            report_decision(made, as_json=as_json)

        command(decide, **rest)

    functools.update_wrapper(decided, command)
    first, *own = inspect.signature(command, eval_str=False).parameters.values()
    assert first.name == "decide"
    _sign(decided, [inspect.Parameter("worker", first.kind), *own, *_HOW])
    return asking(decided)


def _sign(function: Any, parameters: Sequence[inspect.Parameter]) -> None:
    """Gives a wrapper the signature that the command line is made from."""
    function.__signature__ = inspect.Signature(parameters)
    function.__annotations__ = {each.name: each.annotation for each in parameters}


def _option(
    name: str, kind: Any, default: Any, *declared: str, **settings: Any
) -> inspect.Parameter:
    annotation = Annotated[kind, typer.Option(*declared, **settings)]
    place = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, place, default=default, annotation=annotation)


_WHERE: Final = (
    _option(
        "at", str, AT, envvar="LMERGE_WORKER", metavar="URL", callback=address_of,
        help="Where a worker serves HTTP; any worker of the merge will do.",
    ),
    _option(
        "token_file", Path | None, None, metavar="FILE",
        help="Holds the token that the worker asks for; else $LMERGE_TOKEN does.",
    ),
    _option("ca", Path | None, None, metavar="FILE", help="Who signs the worker's certificate."),
    _option(
        "certificate", Path | None, None, metavar="FILE",
        help="Our own certificate with its key, where a worker asks for one.",
    ),
)  # fmt: skip
_HOW: Final = (
    _option(
        "expects", int | None, None, min=0, metavar="VERSION",
        help="Refuse if the version is another one by then.",
    ),
    _option(
        "decision_id", str | None, None, "--id", metavar="ID",
        help="Ask once more for a decision whose outcome is unknown.",
    ),
    _option("as_json", bool, False, "--json", help="Print JSON, for programs."),
)  # fmt: skip


def report_decision(made: Mapping[str, Any], *, as_json: bool) -> None:
    """Prints the answer to a decision."""
    if as_json:
        print_json(made)
        return
    what, version, asked = (printable(str(made.get(key))) for key in ("action", "version", "id"))
    typer.echo(f"version {version}: {what} (decision {asked})")
