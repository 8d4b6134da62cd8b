"""A plan that has died."""

from collections.abc import Iterable

from lmerge_service.elements import Element

__all__ = ("Dead",)


class Dead:
    """In a network's place after its death: its state is gone, its stable stays."""

    def __init__(self, stable: int) -> None:
        self.stable = stable

    def __len__(self) -> int:
        return 0

    def process_batch(self, _source: str, _elements: Iterable[Element]) -> list[Element]:
        return []
