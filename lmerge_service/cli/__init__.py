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
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import typer
from typer.main import get_command

from lmerge_service.cli import (
    audit,
    broker,
    control,
    cutover,
    dashboard,
    demo,
    doctor,
    drill,
    generate,
    infer,
    jumpstart,
    merge,
    present,
    publish,
    query,
    query_correct,
    query_feed,
    query_run,
    query_spark,
    read,
    restart_output,
    run,
    selection,
    spark_merge,
    state,
    table,
    up,
    watch,
)
from lmerge_service.cli.options import App
from lmerge_service.errors import LMergeError

__all__ = ("app", "main")

app = App(
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
    _: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Show the version."
    ),
) -> None:
    """Merge redundant replicas of a continuous query into one equivalent stream."""


_KAFKA = "Streams in Kafka"
_SPARK = "At scale, with Spark"
_COMMANDS: Mapping[str, Sequence[Callable[..., None]]] = {
    _KAFKA: (
        demo.demo, up.up, up.down, run.run, doctor.doctor, spark_merge.spark_merge,
        read.read, publish.publish,
    ),
    "Running workers": (
        control.status, watch.watch, control.attach, control.detach,
        jumpstart.jumpstart, cutover.cutover, control.quarantine, control.release,
        control.accept_gap, control.policy, control.decisions, dashboard.dashboard, drill.drill,
        restart_output.restart_output,
    ),
    "Streams in files": (present.present, merge.merge, audit.audit, infer.infer),
    _SPARK: (generate.generate,),
}  # fmt: skip
for panel, commands in _COMMANDS.items():
    for each in commands:
        app.command(rich_help_panel=panel)(each)
for each in (
    query_run.run, query_correct.correct, query_spark.spark, query_feed.feed, selection.readings,
    selection.select,
):  # fmt: skip
    query.app.command()(each)
app.add_typer(query.app, name="query", rich_help_panel=_KAFKA)
app.add_typer(broker.app, name="broker", rich_help_panel=_KAFKA)
app.add_typer(state.app, name="state", rich_help_panel=_KAFKA)
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
