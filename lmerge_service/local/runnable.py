"""What is started and stopped, with an event loop or without, as a context of either kind."""

from abc import ABC, abstractmethod
from typing import Any, Self

__all__ = ("Runnable",)


class Runnable(ABC):
    """Started when the context is entered, stopped when it is left."""

    @abstractmethod
    async def astart(self) -> Any: ...

    @abstractmethod
    async def astop(self) -> Any: ...

    @abstractmethod
    def start(self) -> Any:
        """`astart`, for callers without an event loop."""

    @abstractmethod
    def stop(self) -> Any:
        """`astop`, for callers without an event loop."""

    async def __aenter__(self) -> Self:
        await self.astart()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.astop()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
