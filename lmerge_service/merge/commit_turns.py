"""How many transactions of a worker are committed at once.

Theory
    A commit costs a worker some milliseconds, however little is in it. Many tasks that commit
    whenever they can would do little else; where they take turns, each has gathered more by then,
    and under load the transactions grow by themselves. A worker with few tasks does not notice. One
    that is behind reads and merges much between two steps of a commit, so that each takes long: it
    has more of them under way, or what they wait with would fill the memory.

    >>> turns = CommitTurns(lambda: 1)
    >>> first, second = Turn(turns), Turn(turns)
    >>> first.is_mine, second.is_mine
    (True, False)
    >>> first.end()
    >>> second.is_mine
    True
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

__all__ = ("CommitTurns", "Turn", "at_once")

_AT_ONCE: Final = 4
_AT_ONCE_BEHIND: Final = 16


def at_once(*, behind: bool) -> int:
    """How many transactions a worker commits at once, whether it is behind or not."""
    return _AT_ONCE_BEHIND if behind else _AT_ONCE


class CommitTurns:
    """Of one worker."""

    def __init__(self, most: Callable[[], int] = lambda: _AT_ONCE) -> None:
        """`most` is how many there may be now."""
        self._most = most
        self._given = 0
        self._waiting: deque[Turn] = deque()

    def ask(self, turn: "Turn") -> None:
        """Gives the turn now, or once others have ended theirs."""
        self._waiting.append(turn)
        self._give()

    def end(self, turn: "Turn") -> None:
        """Takes the turn back, or the wish for it."""
        if turn.is_given:
            self._given -= 1
        else:
            self._waiting.remove(turn)
        self._give()

    def _give(self) -> None:
        while self._waiting and self._given < self._most():
            self._given += 1
            self._waiting.popleft().give()


class Turn:
    """Of one task."""

    def __init__(self, turns: CommitTurns) -> None:
        self.is_given = False
        self._turns = turns
        self._is_asked = False
        self._given: asyncio.Future[None] | None = None

    @property
    def is_mine(self) -> bool:
        """It is this task's turn; if not, it is asked for."""
        if not self._is_asked:
            self._is_asked = True
            self._turns.ask(self)
        return self.is_given

    @property
    def coming(self) -> "asyncio.Future[None] | None":
        """Done once the turn is given; None: it is not asked for, or given."""
        if not self._is_asked or self.is_given:
            return None
        if self._given is None:
            self._given = asyncio.get_running_loop().create_future()
        return self._given

    def give(self) -> None:
        """See `CommitTurns.ask`."""
        self.is_given = True
        given, self._given = self._given, None
        if given is not None and not given.done():
            given.set_result(None)

    def end(self) -> None:
        """The commit is over, or will not be."""
        if self._is_asked:
            self._turns.end(self)
        self._is_asked = self.is_given = False
