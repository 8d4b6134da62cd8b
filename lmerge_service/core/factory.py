"""Making operators: by case and policy, from a snapshot, or under a weaker case.

Theory
    R0 to R2 keep hardly any events. A policy that holds events back, or lets inputs vote on them,
    needs an index: then the same restriction is merged by LMR3, or for R1, which has no key, by
    LMR4, and inputs are still held to their order.

    An input that breaks the declared case is reported, and the element changes nothing. The
    caller may quarantine that input. Or it accepts what the input sends and goes on under a weaker
    case: `weakened` rebuilds the operator from what inputs have sent and the output has emitted,
    and returns what the stronger case had lost of it.
"""

from collections.abc import Iterable
from typing import Final

from lmerge_service.core.base import LMerge
from lmerge_service.core.case import Case
from lmerge_service.core.engine import EngineSetting
from lmerge_service.core.engine import chosen as engine_for
from lmerge_service.core.lmr0 import LMR0
from lmerge_service.core.lmr1 import LMR1
from lmerge_service.core.lmr2 import LMR2
from lmerge_service.core.lmr3 import LMR3
from lmerge_service.core.lmr4 import LMR4
from lmerge_service.core.ordered import Restricted
from lmerge_service.core.policy import Policy
from lmerge_service.core.properties import StreamProperties, weakest
from lmerge_service.core.snapshots import Head, Items, opened, unsealed
from lmerge_service.elements import Element
from lmerge_service.errors import StateError

__all__ = ("Restoring", "lmerge", "restore", "restore_parts", "weakened")


class _IndexedR0(Restricted, LMR3):
    case = Case.R0


class _IndexedR1(Restricted, LMR4):
    case = Case.R1


class _IndexedR2(Restricted, LMR3):
    case = Case.R2


_LEAN: Final[dict[Case, type[LMerge]]] = {
    Case.R0: LMR0,
    Case.R1: LMR1,
    Case.R2: LMR2,
    Case.R3: LMR3,
    Case.R4: LMR4,
}
_INDEXED: Final[dict[Case, type[LMerge]]] = {
    **_LEAN,
    Case.R0: _IndexedR0,
    Case.R1: _IndexedR1,
    Case.R2: _IndexedR2,
}


def lmerge(
    case: Case | str = Case.R3,
    policy: Policy = Policy(),
    *,
    properties: Iterable[StreamProperties] = (),
    engine: EngineSetting = "python",
) -> LMerge:
    """An operator for inputs that obey `case`: R0 to R4, or "auto" for the strongest case that
    inputs with these `properties` obey together. By another `engine` than Python's (`core.engine`)
    payloads must be bytes.

    >>> counts = StreamProperties(ordered=True, revises=False).grouped_aggregate()
    >>> print(lmerge("auto", properties=[counts, counts]).case)
    R2

    Raises:
        ValueError: there is no such case, "auto" without properties, or a case that is stronger
            than the properties allow.
        ConfigurationError: the engine cannot be had (`core.engine.chosen`).
    """
    promised = list(properties)
    strongest = weakest(promised) if case == "auto" else Case(case)
    if promised and strongest < weakest(promised):
        raise ValueError(f"the inputs' properties allow {weakest(promised)} only, not {strongest}")
    if engine != "python" and engine_for(engine, strongest, policy).is_native:
        from lmerge_service.core.native import NativeLMR3  # the engine need not be installed

        return NativeLMR3(policy)
    classes = _INDEXED if policy.remembers else _LEAN
    return classes[strongest](policy)


class Restoring:
    """An operator that comes out of its parts, taken one at a time.

    >>> merge = lmerge("R3")
    >>> merge.attach("a")
    >>> restoring = Restoring()
    >>> for part in merge.parts():
    ...     restoring.add(part)
    >>> restoring.finish().inputs
    {'a': Input('a', incarnation=0, joined, stable=-9223372036854775808)}

    Complexity: a part O(its events (inputs + lg w)).
    """

    def __init__(self, engine: EngineSetting = "python") -> None:
        self._engine: EngineSetting = engine
        self._merge: LMerge | None = None
        self._items: Items | None = None

    def add(self, part: bytes) -> None:
        """Takes the next part: of those of `LMerge.parts`, all and in order.

        Raises:
            StateError: it is not the next one, damaged, or of another version.
        """
        if self._merge is None or self._items is None:
            self._begin(part)
            return
        body = self._items.take(part)
        try:
            self._merge.load_body(body)
        except (AssertionError, LookupError, TypeError, ValueError) as error:
            raise StateError(f"the snapshot is damaged: {error!r}") from error

    def _begin(self, part: bytes) -> None:
        head = opened(part, Head)
        try:
            self._merge = lmerge(head.case, Policy(*head.policy), engine=self._engine)
            self._merge.load_head(head)
        except ValueError as error:
            raise StateError(f"the snapshot is damaged: {error!r}") from error
        self._items = Items(part, head.items, self._merge.body)

    def finish(self) -> LMerge:
        """The operator.

        Raises:
            StateError: parts are missing.
        """
        if self._merge is None or self._items is None:
            raise StateError("the snapshot is damaged: it has no parts")
        self._items.finish()
        return self._merge


def restore_parts(parts: Iterable[bytes], engine: EngineSetting = "python") -> LMerge:
    """The operator of which these are the `parts`, by whichever engine they were taken from; looks
    at one at a time.

    Raises:
        StateError: they are damaged, of another version, or not all, in order.
    """
    restoring = Restoring(engine)
    for part in parts:
        restoring.add(part)
    return restoring.finish()


def restore(saved: bytes, engine: EngineSetting = "python") -> LMerge:
    """The operator of which `saved` is a snapshot.

    Raises:
        StateError: the bytes are damaged, or of another version.
    """
    return restore_parts(unsealed(saved), engine)


def weakened(
    merge: LMerge,
    case: Case | str,
    inputs: Iterable[tuple[str, int, Element]],
    output: Iterable[Element],
) -> tuple[LMerge, list[Element]]:
    """An operator of a weaker case that takes over: it has the same inputs, and the state of all
    that they have sent and the output has emitted.

    `inputs` gives (input, partition, element) of the attached inputs, in any interleaving that
    keeps the order within a partition; `output` is all that has been emitted. Returns the
    operator and what is to be emitted now, which the stronger case had missed. (Under a policy that
    holds events back, or reflects revisions, that is left to the stable that half freezes them.)

    >>> from lmerge_service.elements import Insert
    >>> strong = lmerge("R0")
    >>> strong.attach("a"); strong.attach("b")
    >>> sent = [("a", 0, Insert("A", 5, 9)), ("b", 0, Insert("B", 4, 6))]
    >>> emitted = [o for name, _, element in sent for o in strong.process(name, element)]
    >>> weak, missed = weakened(strong, "R3", sent, emitted)
    >>> missed
    [Insert(payload='B', vs=4, ve=6)]

    Raises:
        StateError: the output holds an event twice, and `case` has a key: take R4.
        ValueError: `case` is not weaker.
    """
    if Case(case) <= merge.case:
        raise ValueError(f"{case} is not weaker than {merge.case}")
    weaker = lmerge(case, merge.policy)
    weaker.replay_output(output)
    weaker.attach_like(merge)
    missed: list[Element] = []
    for name, partition, element in inputs:
        missed += weaker.replay_input(name, (element,), partition)
    weaker.breaches()  # they were reported when they happened
    return weaker, missed
