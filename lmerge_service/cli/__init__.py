"""The command line: `lmerge COMMAND`; every command is a thin reading of options over a library.

A user's mistake ends in one line on standard error and an exit code: 0 done, 1 a negative verdict,
2 bad input, configuration or usage, 3 something outside is missing, 4 a state that cannot be
used, 5 fenced by another instance, 6 a decision was refused, 130 interrupted, 141 nobody reads the
output any more.

What takes long to import (drawing, asyncio, clients of Kafka and HTTP) is imported where it is
used, so that help, mistakes and the commands on files do not wait for it.
"""

import io
import logging
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any, NoReturn

import typer
from typer.main import get_command

from lmerge_service.cli import (
    audit,
    broker,
    control,
    cutover,
    demo,
    drill,
    generate,
    infer,
    jumpstart,
    merge,
    present,
    publish,
    read,
    replica,
    run,
    selection,
    spark_merge,
    state,
    table,
    up,
    watch,
)
from lmerge_service.errors import LMergeError

__all__ = ("app", "main")

app = typer.Typer(
    name="lmerge",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Start with `lmerge demo`. Exit codes: 0 done, 1 a negative verdict, 2 bad input, "
    "configuration or usage, 3 something outside is missing (Kafka, a worker, a package), 4 what "
    "is stored cannot be used, 5 another one took over, 6 a decision was refused, 130 interrupted.",
)


def _version(requested: bool) -> None:
    if requested:
        from importlib.metadata import version

        typer.echo(f"lmerge {version('lmerge-service')}")
        raise typer.Exit


@app.callback()
def root(
    _: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Merge redundant replicas of a continuous query into one equivalent stream."""


_KAFKA = "Streams in Kafka"
_WORKERS = "Running workers"
_FILES = "Streams in files"
_SPARK = "At scale, with Spark"

app.command("demo", rich_help_panel=_KAFKA)(demo.demo)
app.command("up", rich_help_panel=_KAFKA)(up.up)
app.command("down", rich_help_panel=_KAFKA)(up.down)
app.command("run", rich_help_panel=_KAFKA)(run.run)
app.command("spark-merge", rich_help_panel=_KAFKA)(spark_merge.spark_merge)
app.command("read", rich_help_panel=_KAFKA)(read.read)
app.command("publish", rich_help_panel=_KAFKA)(publish.publish)
replica.app.command("readings")(selection.readings)
replica.app.command("select")(selection.select)
app.add_typer(replica.app, name="replica", rich_help_panel=_KAFKA)
app.add_typer(broker.app, name="broker", rich_help_panel=_KAFKA)
app.add_typer(state.app, name="state", rich_help_panel=_KAFKA)
app.command("status", rich_help_panel=_WORKERS)(control.status)
app.command("watch", rich_help_panel=_WORKERS)(watch.watch)
app.command("attach", rich_help_panel=_WORKERS)(control.attach)
app.command("detach", rich_help_panel=_WORKERS)(control.detach)
app.command("jumpstart", rich_help_panel=_WORKERS)(jumpstart.jumpstart)
app.command("cutover", rich_help_panel=_WORKERS)(cutover.cutover)
app.command("quarantine", rich_help_panel=_WORKERS)(control.quarantine)
app.command("release", rich_help_panel=_WORKERS)(control.release)
app.command("accept-gap", rich_help_panel=_WORKERS)(control.accept_gap)
app.command("policy", rich_help_panel=_WORKERS)(control.policy)
app.command("decisions", rich_help_panel=_WORKERS)(control.decisions)
app.command("drill", rich_help_panel=_WORKERS)(drill.drill)
app.command("present", rich_help_panel=_FILES)(present.present)
app.command("merge", rich_help_panel=_FILES)(merge.merge)
app.command("audit", rich_help_panel=_FILES)(audit.audit)
app.command("infer", rich_help_panel=_FILES)(infer.infer)
app.command("generate", rich_help_panel=_SPARK)(generate.generate)
app.add_typer(table.app, name="table", rich_help_panel=_SPARK)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """The console script; takes the process's arguments unless given others."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # what the terminal lacks is no reason to fail
            stream.reconfigure(errors="backslashreplace")
    logging.getLogger().addHandler(logging.NullHandler())  # else Python prints libraries' warnings
    sys.exit(_run(list(sys.argv[1:] if arguments is None else arguments)))


def _run(arguments: list[str]) -> int:
    """The exit code, after the error message on one line."""
    try:
        code = _invoke(arguments)
        if sys.stdout is not None:
            sys.stdout.flush()
    except LMergeError as error:
        return _fail(str(error), error.exit_code)
    except typer.TyperException as error:
        return _fail(_usage(error), error.exit_code)
    except typer.Abort:
        return _fail("nothing done", 1)
    except KeyboardInterrupt:
        return 130
    except (BrokenPipeError, SystemExit) as error:
        if isinstance(error, SystemExit) and not isinstance(error.__context__, BrokenPipeError):
            raise  # else it is rich, which ends the process by itself when a pipe breaks
        _drop_output()
        return 141
    except OSError as error:
        if error.strerror is None:  # not the system's word: a bug
            raise
        _drop_output()
        return _fail(f"{error.filename or 'standard output'}: {error.strerror}", 2)
    return code


def _invoke(arguments: list[str]) -> int:
    command = get_command(app)
    _tidy_help(command)
    try:
        with command.make_context("lmerge", arguments) as context:
            command.invoke(context)
    except typer.Exit as end:
        return end.exit_code
    return 0


def _tidy_help(command: Any, parent: Any = None) -> None:
    """Removes redundant types from help: <bool> of a flag, <str> of FILE."""
    context = command.context_class(command, parent=parent, **command.context_settings)
    for parameter in command.get_params(context):
        if parameter.param_type_name == "argument" or parameter.is_flag:
            parameter.display_type_rich = lambda ctx: None
    for each in getattr(command, "commands", {}).values():
        _tidy_help(each, context)


def _fail(message: str, code: int) -> int:
    for line in message.splitlines():
        typer.echo(f"error: {line}", err=True)
    return code


def _usage(error: typer.TyperException) -> str:
    """What was wrong with the arguments, and which help has more; nothing when it was shown."""
    message = error.format_message().replace("Value error, ", "").strip().rstrip(".")
    context = getattr(error, "ctx", None)
    if message and context is not None:
        message += f" ({context.command_path} --help has more)"
    return message


def _drop_output() -> None:
    """Lets what is left in the buffer go nowhere, so that the interpreter's last flush is quiet."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
