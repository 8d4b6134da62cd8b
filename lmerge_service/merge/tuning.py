"""Settings of the interpreter for a process that merges."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ("quieten_garbage_collector", "without_garbage_collector")


@contextmanager
def without_garbage_collector() -> Iterator[None]:
    """While a large state is read, which makes no cycles: scanning it takes as long again."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def quieten_garbage_collector() -> None:
    """Elements and nodes hold no cycles; scanning them over and over costs a third of the rate.

    To be called when everything is imported, which is most of what there is to scan; not in a
    hurry: it takes a tenth of a second and more. Whatever is large and in cycles is to be collected
    by whoever lets go of it.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 100)
