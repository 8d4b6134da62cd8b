"""The command line: `lmerge COMMAND`; every command is a thin reading of options over a library.

A user's mistake ends in one line on standard error and an exit code: 0 done, 1 a negative verdict,
2 bad input, configuration or usage, 3 something outside is missing, 4 a state that cannot be
used, 5 fenced by another instance, 130 interrupted.
"""

import sys
from importlib.metadata import version
from typing import Annotated

import typer

from lmerge_service.cli import broker, demo, files, present, run
from lmerge_service.errors import LMergeError

__all__ = ("app", "main")

app = typer.Typer(
    name="lmerge",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"lmerge {version('lmerge-service')}")
        raise typer.Exit


@app.callback()
def root(
    _: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Say the version."),
    ] = False,
) -> None:
    """Merges redundant replicas of a continuous query into one logically equivalent stream."""


app.command("demo")(demo.demo)
app.command("run")(run.run)
app.command("merge")(files.merge)
app.command("audit")(files.audit)
app.command("present")(present.present)
app.command("publish")(files.publish)
app.add_typer(broker.app, name="broker")


def main() -> None:
    """The console script."""
    try:
        app()
    except LMergeError as error:
        for line in str(error).splitlines():
            typer.echo(f"error: {line}", err=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of a pipe has left: nothing to say, and nowhere to
        sys.exit(141)
