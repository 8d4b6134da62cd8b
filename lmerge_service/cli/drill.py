"""`lmerge drill`: fault injection, and whether the merge keeps its guarantees."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lmerge_service.cli.options import Json, warnings_only
from lmerge_service.cli.words import print_json, printable
from lmerge_service.errors import ConfigurationError, EnvironmentMissingError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lmerge_service.drills.report import DrillResult

__all__ = ("drill",)

_MISSING = "drills need the extra `drills`: pip install 'lmerge-service[drills]'"


def drill(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]...", help="Of a drill, or a file with an experiment."),
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="The standard set, in order.")] = False,
    list_: Annotated[bool, typer.Option("--list", help="Show which drills there are.")] = False,
    random: Annotated[
        int | None,
        typer.Option(
            metavar="SEED", help="Random faults, several at once; equal seeds, equal faults."
        ),
    ] = None,
    minutes: Annotated[
        float,
        typer.Option(min=0, metavar="N", help="With --random: go on with the next seed so long."),
    ] = 5,
    html: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Write a page on each drill there: NAME.html."),
    ] = None,
    json: Json = False,
) -> None:
    """Inject faults, and check that the merge keeps its guarantees.

    Each drill starts a broker, workers and replicas of its own on this machine, runs an
    experiment of the Chaos Toolkit on them, and has the topics judged. Exit 0 when all passed, 1
    when not.

    Example: `lmerge drill leader-dies --html .`
    """
    _require_toolkit()
    warnings_only()
    from lmerge_service.drills.drills import STANDARD

    if list_:
        _list(STANDARD, json=json)
        return
    if random is not None and (all_ or names):
        raise ConfigurationError("--random composes its own faults: leave --all and names out")
    if all_ and names:
        raise ConfigurationError("--all runs all drills: leave the names out")
    chosen = list(STANDARD) if all_ else names
    if random is None and not chosen:
        raise ConfigurationError("which drill? Name one, or --all; --list shows them")
    if html is not None:
        html.mkdir(parents=True, exist_ok=True)
    if random is not None:
        raise typer.Exit(0 if _run_random(random, minutes, html, json=json) else 1)
    passed = [_run(each, html, json=json).passed for each in _known(chosen or [])]
    if len(passed) > 1 and not json:
        typer.echo(f"{sum(passed)} of {len(passed)} drills passed")
    raise typer.Exit(0 if all(passed) else 1)


def _require_toolkit() -> None:
    from importlib.util import find_spec

    if any(find_spec(name) is None for name in ("chaoslib", "matplotlib", "psutil", "jgo")):
        raise EnvironmentMissingError(_MISSING)


def _known(names: "Sequence[str]") -> "Sequence[dict[str, Any]]":
    """Finds a mistake in the last name before the first drill is run."""
    from lmerge_service.drills.drills import experiment

    return [experiment(name) for name in names]


def _list(names: "Sequence[str]", *, json: bool) -> None:
    from lmerge_service.drills.drills import experiment

    drills = [
        {"name": name, "title": found["title"], "description": found["description"].strip()}
        for name in names
        for found in [experiment(name)]
    ]
    if json:
        print_json(drills)
        return
    for each in drills:
        typer.echo(f"{each['name']:<24} {each['title']}")


def _run_random(seed: int, minutes: float, html: Path | None, *, json: bool) -> bool:
    """Seed after seed, until the time is over or one has failed; a fault that could not be
    injected proves nothing, and is no failure."""
    from itertools import count

    from lmerge_service.drills.random_schedules import compose, experiment_of

    until = time.monotonic() + minutes * 60
    for each in count(seed):
        schedule = compose(each)
        typer.echo(f"{schedule}", err=True)
        result = _run(experiment_of(schedule), html, json=json)
        if not (result.passed or result.unplayed):
            again = f"lmerge drill --random {each} --minutes 0"
            typer.echo(f"failed; `{again}` runs the same faults again", err=True)
            return False
        if time.monotonic() >= until:
            break
    return True


def _run(definition: "dict[str, Any]", html: Path | None, *, json: bool) -> "DrillResult":
    from lmerge_service.drills.drills import Interrupted, run

    began = time.monotonic()
    typer.echo(f"{definition['title']}", err=True)

    def report(line: str) -> None:
        typer.echo(f"{time.monotonic() - began:6.1f} s  {printable(line)}", err=True)

    try:
        result = run(definition, report)
    except Interrupted:
        raise KeyboardInterrupt from None
    if html is not None:
        _write(result, html / f"{result.name}.html")
    if json:
        print_json(result)
    else:
        _show(result)
    return result


def _write(result: "DrillResult", path: Path) -> None:
    from lmerge_service.drills.page import page
    from lmerge_service.page import write_page

    write_page(page(result), path)
    typer.echo(f"wrote {path}", err=True)


def _show(result: "DrillResult") -> None:
    verdict = "passed" if result.passed else "NOT PASSED"
    hole = ""
    if result.judged is not None:
        found = result.judged.hole
        checks = " ".join(f"{each['check']} {each['outcome']}" for each in result.judged.findings)
        hole = f"; no output for {found.seconds:.2f} s at most, {found.events} events; {checks}"
    typer.echo(f"{result.name}: {verdict}{hole}")
    for line in result.why:
        typer.echo(f"  {printable(line)}")
