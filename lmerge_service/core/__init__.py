"""The LMerge operators: pure, synchronous, and ignorant of Kafka, clocks and logs."""

from lmerge_service.core.breaches import Breach, BreachKind
from lmerge_service.core.inputs import Input
from lmerge_service.core.lmr3 import LMR3
from lmerge_service.core.operator import Case, Gap, Operator, Stats

__all__ = (
    "Breach",
    "BreachKind",
    "Case",
    "Gap",
    "Input",
    "Operator",
    "Stats",
    "lmerge",
    "restore",
)


def lmerge(case: Case | str = Case.R3) -> Operator:
    """An operator for inputs that obey `case`.

    Raises:
        ValueError: no such case, or none that is implemented.
    """
    match Case(case):
        case Case.R3:
            return LMR3()


def restore(saved: bytes) -> Operator:
    """The operator of which `saved` is a snapshot.

    Raises:
        StateError: the bytes are damaged, or of another version.
    """
    return LMR3.restore(saved)
