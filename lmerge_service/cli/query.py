"""`lmerge query`: queries in Python files, what is known of them, and whether plans agree."""

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

import typer

from lmerge_service.cli.options import App, Json, argument, flag, option
from lmerge_service.cli.query_costs import (
    CalibrationFile,
    CostOptions,
    Sample,
    calibration_file,
    known_streams,
)
from lmerge_service.cli.query_target import QueryTarget
from lmerge_service.cli.streams import check_files
from lmerge_service.cli.words import report
from lmerge_service.errors import ConfigurationError

if TYPE_CHECKING:
    from lmerge_service.queries.physical import PhysicalPlan
    from lmerge_service.queries.plan import Query
    from lmerge_service.queries.sampling import PlanSample

__all__ = ("app",)

app = App(
    no_args_is_help=True,
    help="Queries: list and explain them, check their plans, run them as replicas.",
)

_PLANS: Final = 4
_COMPARED: Final = 100
"""With the meaning, so many times for each plan, unless it is given how often."""
_Plans = option("N", "So many physical plans.", "--plans", default=_PLANS, min=1, max=16)


@app.command("list")
def list_queries(
    place: str = argument("FILE", "A Python file, or the name of a module."), json: Json = False
) -> None:
    """List the queries of a file or module.

    Example: `lmerge query list queries.py`
    """
    from lmerge_service.cli.query_shown import listed_document, listed_lines
    from lmerge_service.queries.loading import queries_in

    if not (found := queries_in(place)):
        raise ConfigurationError(f"{place} has no queries: name one, as late = facts(…).where(…)")
    report(listed_document(found), *listed_lines(found), as_json=json)


@app.command()
def explain(
    target: QueryTarget,
    plans: int = _Plans,
    json: Json = False,
    mermaid: bool = flag("A Mermaid flowchart of the query instead.", "--mermaid"),
    sample: list[str] = option(
        "FACTS",
        "Recorded facts or elements, as `lmerge query check` takes them: what each plan costs over "
        "them.",
        "--sample",
        default=[],
        show_default=False,
    ),
    *,
    costs: CostOptions,
) -> None:
    """Explain a query: its tree, its physical plans, and what is known before they run.

    A plan has the same number in every process. LMerge's case is that of the plans shown. With a
    sample, or with --stream, the costs of each plan are estimated, node by node: how many elements
    it emits, and how many for an event (ρ), its state, how far its stable point is behind (in the
    unit of the times), and the processor's time. Over a sample each plan also runs, and the same is
    measured.

    Example: `lmerge query explain queries.py:delays --sample facts.jsonl`

    Example: `lmerge query explain queries.py:delays --stream 20000 --memory 512 --cores 1`

    Example: `lmerge query explain queries.py --sql 'SELECT origin FROM flights WHERE delay > 15'`
    """
    from lmerge_service.cli.query_shown import explained_document, explained_lines
    from lmerge_service.queries import explaining
    from lmerge_service.queries.plan_numbering import numbered_plans

    query = target.query()
    if mermaid:
        for line in explaining.mermaid(query.plan):
            typer.echo(line)
        return
    every = numbered_plans(query, plans)
    document, lines = explained_document(query, every), [*explained_lines(query, every)]
    if sample or costs.stream:
        more, shown = _costs(query, every, sample, costs, target.unit)
        document |= more
        lines += shown
    report(document, *lines, as_json=json)


def _costs(
    query: "Query",
    plans: Sequence["PhysicalPlan"],
    inputs: Sequence[str],
    costs: CostOptions,
    unit: str,
) -> tuple[dict[str, Any], list[str]]:
    """What the plans cost, for programs and for people: estimated, and over recorded input also
    measured."""
    from lmerge_service.cli.query_estimated import estimated_document, estimated_lines
    from lmerge_service.cli.query_sampled import sampled_document, sampled_lines
    from lmerge_service.queries.costs.estimating import estimate

    document, lines = dict[str, Any](), list[str]()
    if inputs:
        if costs.stream:
            raise ConfigurationError("--sample and --stream both say how facts come: give one")
        sample = _sample(query, inputs)
        known, _ = sample.known(plans)
        found = _samples(sample, plans)
        document["sample"] = sampled_document(sample.recorded, found)
        lines += sampled_lines(sample.recorded, found)
    else:
        known = known_streams(query, costs.stream or ())
    units, budget = costs.units(), costs.budget(unit)
    estimates = [estimate(plan, known, units) for plan in plans]
    document["estimated"] = estimated_document(estimates, budget)
    advice = None
    if units is None:
        advice = "for time and memory, run `lmerge query calibrate` once on this machine"
    elif any(each.unknown for each in estimates):
        advice = "how long functions take, only a sample shows: give --sample"
    lines += estimated_lines(estimates, budget, advice)
    return document, lines


def _sample(query: "Query", inputs: Sequence[str]) -> Sample:
    """Recorded input of a query."""
    from lmerge_service.offline.recorded_facts import Recorded
    from lmerge_service.queries.logical import sources

    recorded = Recorded(query.plan, _files(list(sources(query.plan)), inputs))
    return Sample(recorded, list(recorded.steps()))


def _samples(sample: Sample, plans: Sequence["PhysicalPlan"]) -> list["PlanSample"]:
    """Each plan over recorded input, by the processor's time."""
    from contextlib import nullcontext
    from time import process_time_ns

    from rich.progress import MofNCompleteColumn

    from lmerge_service.cli.progress import bars, is_shown
    from lmerge_service.queries.sampling import sampled

    with bars(MofNCompleteColumn()) if is_shown() else nullcontext() as progress:
        task = progress.add_task("plans over the sample", total=len(plans)) if progress else None
        found = []
        for plan in plans:
            found.append(sampled(plan, sample.steps, process_time_ns))
            if progress and task is not None:
                progress.advance(task)
    return found


@app.command()
def calibrate(calibration: CalibrationFile = None, json: Json = False) -> None:
    """Measure what work and state cost on this machine, for `explain` and `choose`.

    Once for each machine and version: it takes a minute, and should have the machine for itself.

    Example: `lmerge query calibrate`
    """
    from contextlib import nullcontext
    from time import process_time_ns

    from rich.progress import MofNCompleteColumn

    from lmerge_service.cli.progress import bars, is_shown
    from lmerge_service.queries.costs.calibrating import calibrated
    from lmerge_service.queries.costs.units import write_units

    place = calibration_file(calibration)
    with bars(MofNCompleteColumn()) if is_shown() else nullcontext() as progress:
        task = progress.add_task("plans", total=None) if progress else None

        def shown(done: int, of: int) -> None:
            if progress and task is not None:
                progress.update(task, completed=done, total=of)

        units = calibrated(process_time_ns, shown)
    write_units(place, units)
    line = f"{place}: the costs of {len(units.nanoseconds)} units of work, {units.error:.0%} off"
    document = {"file": str(place), "error": units.error, "nanoseconds": units.nanoseconds}
    report(document | {"bytes": units.bytes}, line, as_json=json)


class _Engine(StrEnum):
    """What replicas may run on (`queries.choosing.ENGINES`); a list of options takes no Literal."""

    PYTHON = "python"
    SPARK = "spark"
    NATIVE = "native"


@app.command("choose")
def choose_plans(
    target: QueryTarget,
    inputs: list[str] = argument(
        "[FACTS]",
        "Recorded facts or elements, as `lmerge query check` takes them; or --stream.",
        default=[],
    ),
    count: int = option("N", "So many plans.", "--plans", "-n", default=3, min=1, max=16),
    slack: float = option(
        "X", "A plan may be so many times as dear as the cheapest.", default=3.0, min=1.0
    ),
    most_lag: int | None = option(
        "TIME",
        "A stable may be so far behind (in the unit of the times).",
        "--max-lag",
        default=None,
        min=0,
    ),
    engines: list[_Engine] = option(
        "ENGINE",
        "What replicas may run on: `python` (`lmerge query run`), `spark` (`lmerge query spark`), "
        "`native` (that with --native). What Spark takes itself is not estimated.",
        "--engine",
        default=[_Engine.PYTHON],
    ),
    json: Json = False,
    *,
    costs: CostOptions,
) -> None:
    """Choose the plans that replicas of a query should run, by what each is estimated to cost.

    The cheapest, then of those that are cheap enough always the one that differs most from the
    others: in how it computes, in what it runs on, and in the facts that are dear for it. A plan
    that would take more than 80 % of --memory or --cores is none. Exit code 1 if there are not so
    many.

    Example: `lmerge query choose queries.py:delays facts.jsonl --plans 3`

    Example: `lmerge query choose queries.py:delays facts.jsonl --engine python --engine spark`
    """
    from lmerge_service.cli.query_sampled import chosen_document, chosen_lines
    from lmerge_service.queries.choosing import ENGINES, choose, excluded, priced
    from lmerge_service.queries.plan_numbering import numbered_plans
    from lmerge_service.queries.properties import check_native

    if bool(inputs) == bool(costs.stream):
        raise ConfigurationError("give FACTS, or how they come by --stream")
    query, units = target.query(), costs.needed_units()
    if _Engine.NATIVE in engines:
        check_native(query.plan)
    plans = numbered_plans(query)
    if inputs:
        known, parts = _sample(query, inputs).known(plans)
    else:
        known, parts = known_streams(query, costs.stream or ()), []
    prices, budget = priced(plans, known, units, parts), costs.budget(target.unit)
    out = [*excluded(prices, slack=slack, most_lag=most_lag, budget=budget)]
    allowed = [each for each in ENGINES if each in engines]
    chosen = choose(prices, count, slack=slack, most_lag=most_lag, budget=budget, engines=allowed)
    if not chosen:
        number, why = out[0]
        raise ConfigurationError(f"no plan fits; plan {number}: {why}")
    lines = chosen_lines(chosen, out, prices)
    report(chosen_document(chosen, out, prices), *lines, as_json=json)
    if len(chosen) < count:
        raise typer.Exit(1)


@app.command("check")
def check_plans(
    target: QueryTarget,
    inputs: list[str] = argument(
        "FACTS",
        "Recorded facts or elements, a line each; - is stdin; NAME=FILE of several sources.",
    ),
    plans: int = _Plans,
    every: int | None = option(
        "N",
        "Compare with the meaning behind each N-th line; by default 100 times in all.",
        "--every",
        default=None,
        min=1,
    ),
    json: Json = False,
) -> None:
    """Run several plans of a query over recorded input, and compare them.

    Each plan is compared with what the query means, and the merge of all is judged after every
    element (conditions C1 to C3). Exit code 1 if a plan, or the merge, is wrong anywhere: the first
    place is printed.

    Example: `lmerge query check queries.py:delays facts.jsonl --plans 6`

    Example: `lmerge query check queries.py:weather flights=a.jsonl sky=b.jsonl`
    """
    from lmerge_service.cli.query_shown import checked_document, checked_lines
    from lmerge_service.offline.recorded_facts import Recorded
    from lmerge_service.queries.checking import check
    from lmerge_service.queries.logical import sources
    from lmerge_service.queries.plan_numbering import numbered_plans

    query = target.query()
    recorded = Recorded(query.plan, _files(list(sources(query.plan)), inputs))
    steps = list(recorded.steps())
    chosen = every or max(1, len(steps) // _COMPARED)
    found = check(numbered_plans(query, plans), steps, chosen)
    document = checked_document(recorded, found)
    report(document, *checked_lines(recorded, found), as_json=json)
    if not found.agrees:
        raise typer.Exit(1)


def _files(names: Sequence[str], inputs: Sequence[str]) -> dict[str, str]:
    """The file of each source: NAME=FILE, or the one file of the one source."""
    pairs = [each.partition("=") for each in inputs]
    if len(inputs) == len(names) == 1 and pairs[0][0] != names[0]:
        found = {names[0]: inputs[0]}
    elif bad := next((each for each, pair in zip(inputs, pairs, strict=True) if not pair[1]), None):
        raise ConfigurationError(
            f"name the source of {bad}, as NAME={bad}: there is {', '.join(sorted(names))}"
        )
    else:
        found = {name: file for name, _, file in pairs}
    if len(found) < len(inputs):
        raise ConfigurationError("two files are given for one source")
    check_files(list(found.values()))
    return found
