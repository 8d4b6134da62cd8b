"""The standard drills, and running one: from an experiment of the Chaos Toolkit to a result.

Who owns what
    The Chaos Toolkit runs the experiment, in this process; its control (`control`) owns the
    drill's environment.
"""

import logging
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NoReturn

import msgspec
from chaoslib.exceptions import ChaosException
from chaoslib.experiment import ensure_experiment_is_valid, run_experiment
from chaoslib.hypothesis import ensure_hypothesis_tolerance_is_valid
from chaoslib.loader import load_experiment
from chaoslib.run import RunEventHandler

from lmerge_service.drills.plan import Refused
from lmerge_service.drills.report import DrillResult
from lmerge_service.drills.variables import refuse_mistakes
from lmerge_service.errors import ConfigurationError, LMergeError
from lmerge_service.signals import orderly_end

__all__ = ("EXPERIMENTS", "STANDARD", "Interrupted", "experiment", "run")

STANDARD: Final = (
    "leader-dies",
    "all-but-one-die",
    "old-data",
    "laggard-leads",
    "liar",
    "far-future",
    "transaction-steps",
    "broker-in-transaction",
    "power-cut",
    "split-brain",
    "rolling-upgrade",
    "slow-consumer",
    "control-lost",
    "control-conflicts",
    "cutover-interrupted",
    "damaged-checkpoint",
    "equal-events",
    "nodes-leader-dies",
    "nodes-coordinators-die",
    "nodes-rolling-restart",
    "nodes-two-down",
    "nodes-frozen",
    "nodes-partition",
)
"""In the order in which `--all` runs them."""

_PACKAGE: Final = Path(__file__).parent
EXPERIMENTS: Final = next(
    folder
    for folder in (_PACKAGE / "experiments", _PACKAGE.parents[1] / "chaos")
    if folder.is_dir()
)
"""In an installed wheel, or in a checkout."""

Report = Callable[[str], None]


class Interrupted(Exception):  # noqa: N818 (a request, no error)
    """The drill was interrupted."""


def experiment(name: str) -> dict[str, Any]:
    """A drill by its name, or by its file.

    Raises:
        ConfigurationError: there is none, or it is no experiment.
    """
    path = EXPERIMENTS / f"{name}.yaml"
    if name not in STANDARD:
        path = Path(name)
        if path.suffix not in (".yaml", ".yml", ".json"):
            raise ConfigurationError(
                f"there is no drill {name!r}: `lmerge drill --list` shows all; a file of yours "
                "ends in .yaml or .json"
            )
    if not path.is_file():
        raise ConfigurationError(f"there is no file {path}")
    _be_quiet()
    try:
        found: dict[str, Any] = load_experiment(str(path))
        ensure_experiment_is_valid(found)
        for activity in (*found["method"], *found.get("rollbacks", [])):
            if "tolerance" in activity:
                ensure_hypothesis_tolerance_is_valid(activity["tolerance"])
        refuse_mistakes(found)
    except ChaosException as error:
        text = " ".join(str(error).split())  # the parser draws over several lines
        raise ConfigurationError(f"{path} is no experiment: {text}") from None
    except (AttributeError, KeyError, TypeError, ValueError) as error:  # the toolkit's gap
        raise ConfigurationError(f"{path} is no experiment: {error!r}") from None
    except Refused as error:
        raise ConfigurationError(f"{path}: {error}") from None
    return found


def run(definition: dict[str, Any], report: Report) -> DrillResult:
    """Runs an experiment to its end.

    Raises:
        Interrupted: by Ctrl-C or SIGTERM; another one does not cut short how it ends.
        LMergeError: it could not begin.
    """
    _be_quiet()
    complaints = _Complaints()
    logger = logging.getLogger("chaostoolkit")
    logger.addHandler(complaints)
    signals: list[int] = []

    def interrupt(number: int) -> NoReturn:
        signals.append(number)
        raise KeyboardInterrupt

    try:
        with orderly_end(interrupt):
            journal = run_experiment(definition, settings={}, event_handlers=[_Progress(report)])
    finally:
        logger.removeHandler(complaints)
    if journal["status"] == "interrupted":
        if "drill" not in journal and not signals:
            raise LMergeError(complaints.last)
        raise Interrupted
    if "drill" not in journal:
        raise ConfigurationError(
            f"{definition['title']}: the experiment lacks the control lmerge_service.drills.control"
        )
    return msgspec.convert(journal["drill"], DrillResult)


def _be_quiet() -> None:
    """The Chaos Toolkit's own log is more verbose than ours."""
    logger = logging.getLogger("chaostoolkit")
    logger.propagate = False
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())


class _Complaints(logging.Handler):
    """Keeps the last error, in case nothing else explains why there is no result."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.last = "the experiment was interrupted"

    def emit(self, record: logging.LogRecord) -> None:
        self.last = record.getMessage()


class _Progress(RunEventHandler):  # type: ignore[misc]
    """A line for each step."""

    def __init__(self, report: Report):
        self._report = report

    def started(self, experiment: dict[str, Any], journal: dict[str, Any]) -> None:
        # The Chaos Toolkit has just put a handler of its own in our handler's place.
        signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGINT))
        self._report("starting a broker, workers and replicas")

    def activity_completed(self, activity: dict[str, Any], run: dict[str, Any]) -> None:
        output = run.get("output")
        failed = "" if run["status"] == "succeeded" else f" [{run['status']}]"
        self._report(f"{activity['name']}{'' if output is None else f': {output}'}{failed}")
