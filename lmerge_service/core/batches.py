"""Batches of the engine: sequences of elements that exist in native code alone until somebody looks
at them. What is on the hot path asks a batch for all elements at once, by `as_batch`; whatever else
takes a sequence of elements need not know.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, cast

from lmerge_service.elements import Element

if TYPE_CHECKING:
    from lmerge_engine import Batch

__all__ = ("as_batch",)

_Batch: type[Any] | None
try:
    from lmerge_engine import Batch as _Batch
except ImportError:
    _Batch = None


def as_batch(elements: Iterable[Element]) -> "Batch | None":
    """The elements themselves, if they are a batch of the engine's."""
    if _Batch is None or type(elements) is not _Batch:
        return None
    return cast("Batch", elements)
