"""What `lmerge query explain` and `choose` estimate from: streams or a sample, and unit costs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from lmerge_service.cli.options import option
from lmerge_service.errors import ConfigurationError

if TYPE_CHECKING:
    from lmerge_service.offline.recorded_facts import Recorded
    from lmerge_service.queries.checking import Step
    from lmerge_service.queries.choosing import Budget
    from lmerge_service.queries.costs.characteristics import Characteristics
    from lmerge_service.queries.costs.formulas import Stream
    from lmerge_service.queries.costs.units import UnitCosts
    from lmerge_service.queries.physical import PhysicalPlan
    from lmerge_service.queries.plan import Query

__all__ = ("CalibrationFile", "CostOptions", "Sample", "calibration_file", "known_streams")

_BUDGET = "What a replica may take"
_SECONDS = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}

CalibrationFile = Annotated[
    Path | None,
    option(
        "FILE",
        "What work costs on this machine (`lmerge query calibrate`). By default calibration.json "
        "in $LMERGE_HOME, else in ~/.local/state/lmerge.",
        "--calibration",
        show_default=False,
    ),
]


@dataclass(frozen=True, slots=True)
class CostOptions:
    """The options that all commands have which estimate plans."""

    stream: Annotated[
        list[str] | None,
        option(
            "[SOURCE=]GAP[,LENGTH[,GRANULE]]",
            "Of a source, in place of a sample: the mean time between events, how long they last "
            "(1), and of what their times are multiples (1).",
            show_default=False,
        ),
    ] = None
    calibration: CalibrationFile = None
    memory: Annotated[
        int | None, option("MIB", "So much memory.", min=1, panel=_BUDGET, show_default=False)
    ] = None
    cores: Annotated[
        float | None,
        option(
            "X",
            "So much of the processor; 1 is a core.",
            min=0.01,
            panel=_BUDGET,
            show_default=False,
        ),
    ] = None

    def units(self) -> "UnitCosts | None":
        """What work costs here; None if that was not measured.

        Raises:
            ConfigurationError: the file cannot be read, or is of another version.
        """
        from lmerge_service.queries.costs.units import read_units

        return read_units(calibration_file(self.calibration))

    def needed_units(self) -> "UnitCosts":
        """The same, for what cannot do without.

        Raises:
            ConfigurationError: that was not measured.
        """
        if (found := self.units()) is None:
            raise ConfigurationError(
                f"there is no {calibration_file(self.calibration)}: run `lmerge query calibrate`"
            )
        return found

    def budget(self, unit: str) -> "Budget":
        """What a replica may take, the times of facts being in this unit."""
        from lmerge_service.queries.choosing import Budget

        memory = None if self.memory is None else self.memory * 2.0**20
        return Budget(memory, self.cores, _SECONDS.get(unit, 1e3))


def calibration_file(given: Path | None) -> Path:
    """Where a machine's costs are."""
    from lmerge_service.local.broker import default_directory

    return given or default_directory("calibration.json")


@dataclass(frozen=True, slots=True)
class Sample:
    """Recorded input, read."""

    recorded: "Recorded"
    steps: "list[Step]"

    def known(
        self, plans: "Sequence[PhysicalPlan]"
    ) -> "tuple[Characteristics, list[Characteristics]]":
        """What it shows of plans, and what its parts do; functions by the time that passes."""
        from time import perf_counter_ns

        from lmerge_service.queries.costs.measuring import measured, measured_parts
        from lmerge_service.queries.sampling import batch_of

        shapes, batch = [plan.plan for plan in plans], batch_of(self.steps)
        known = measured(shapes, self.steps, perf_counter_ns, batch)
        return known, measured_parts(shapes, self.steps, perf_counter_ns, batch)


def known_streams(query: "Query", given: Sequence[str]) -> "Characteristics":
    """Sources as they were described on the command line.

    Raises:
        ConfigurationError: a description is none, or a source has none.
    """
    from lmerge_service.queries.costs.characteristics import Characteristics
    from lmerge_service.queries.logical import sources

    names = sorted(sources(query.plan))
    found: dict[str, Stream] = {}
    for each in given:
        name, equals, text = each.rpartition("=")
        if not equals and len(names) == 1:
            name = names[0]
        if name not in names:
            there = ", ".join(names)
            raise ConfigurationError(
                f"--stream {each}: name a source, as {names[0]}={text}; there is {there}"
            )
        found[name] = _stream(each, text)
    _check_whole(names, found)
    return Characteristics(found)


def _check_whole(names: Sequence[str], found: "Mapping[str, Stream]") -> None:
    for name in names:
        if name not in found:
            raise ConfigurationError(f"--stream says nothing of {name}: give {name}=GAP")


def _stream(given: str, text: str) -> "Stream":
    from lmerge_service.queries.costs.formulas import Stream

    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not 1 <= len(numbers) <= 3 or not all(0 < each < float("inf") for each in numbers):
        raise ConfigurationError(
            f"--stream {given}: give the time between events, and how long they last, as in 20,1"
        )
    gap, length, granule = (*numbers, 1.0, 1.0)[:3]
    return Stream(gap, length, granule)
