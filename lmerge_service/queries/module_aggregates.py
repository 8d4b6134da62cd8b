"""Modules in the place of aggregates: so that they run in panes, and beside counts and sums."""

from collections.abc import Callable, Hashable
from typing import Any, Final

from lmerge_service.core.snapshots import hashable, portable
from lmerge_service.elements import INFINITY, START
from lmerge_service.errors import ConfigurationError
from lmerge_service.queries.aggregates import Aggregate
from lmerge_service.queries.modules import Application, Module
from lmerge_service.queries.window_policies import Window

__all__ = ("ModuleAggregate",)

_NOWHERE: Final = (None, Window(START, INFINITY))


class ModuleAggregate(Aggregate):
    """A time-insensitive module as an aggregate, so that it runs in panes, too: a tuple of results
    (value,) per state, or one per row of a UDO. Its `add`, `remove`, `merge` and `results` call the
    module, and raise `ModuleError` as `Application` does.

    Raises:
        ConfigurationError: the module is time-sensitive, or is incremental and cannot merge.
    """

    __slots__ = ("_use", "persistent", "single")

    def __init__(self, module: Module, value: Callable[[Any], Hashable] | None = None) -> None:
        super().__init__()
        if module.time_sensitive:
            raise ConfigurationError(f"the module {module.name} sees windows: it is no aggregate")
        if module.incremental and not module.mergeable:
            raise ConfigurationError(f"the module {module.name} has no merge")
        self._use = Application(module, value=value)
        self.persistent = module.incremental
        """States are values: what follows leaves them as they are."""
        self.single = not module.rows

    def entry(self, payload: Any, vs: int) -> Any:
        return self._use.value_of(payload)

    def empty(self) -> Any:
        return self._use.empty()

    def copy(self, state: Any) -> Any:
        return state if self.persistent else dict(state)

    def add(self, state: Any, entry: Any, n: int = 1) -> Any:
        return self._use.moved(state, entry, n, _NOWHERE)

    def remove(self, state: Any, entry: Any, n: int = 1) -> Any:
        return self._use.moved(state, entry, -n, _NOWHERE)

    def merge(self, one: Any, two: Any) -> Any:
        return self._use.merged(one, two)

    def results(self, state: Any) -> tuple[tuple[Any, ...], ...]:
        return tuple([(row.payload,) for row in self._use.results(None, _NOWHERE[1], state)])

    def saved(self, state: Any) -> Any:
        return self._use.saved(state)

    def loaded(self, saved: Any) -> Any:
        return self._use.loaded(saved)

    def saved_entry(self, entry: Any) -> Any:
        return portable(entry)

    def loaded_entry(self, saved: Any) -> Any:
        return hashable(saved)
