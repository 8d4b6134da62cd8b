"""The `up` section of a topology: what `lmerge up` starts, and what becomes of what ends.

A worker reads past it. Commands are lists of arguments, never a line for a shell; `lmerge` is the
installation that runs them. The variables of an `environment` are set on top of our own.
"""

import re
from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

__all__ = ("Broker", "Restart", "Started", "Up")

_OURS: Final = re.compile(r"kafka|up|worker-\d+")
"""Names of what is started anyway, and of its log files."""


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _word(given: Any) -> Any:
    """`--rate, 500` without quotes; what YAML makes a bool or null of is not guessed at."""
    return str(given) if isinstance(given, int | float) and not isinstance(given, bool) else given


Word = Annotated[str, BeforeValidator(_word), Field(pattern=r"^[^\x00]*$")]


class Broker(_Model):
    """A Kafka on this machine for as long as the topology is up."""

    keep: bool = False
    """Serve what it held the last time; by default it begins empty each time."""


class Restart(_Model):
    """What becomes of a process that ends."""

    when: Literal["failure", "always", "never"] = "failure"
    """failure: when it ended with anything but 0, a signal included."""
    most: int = Field(default=5, ge=0, le=1_000)
    """So often in a row; a run of a minute or longer ends the row."""
    backoff_seconds: float = Field(default=1, ge=0, le=300)
    """The pause before the first of a row; each further one is twice as long, up to 30 s, or up to
    this if it is longer."""


class Started(_Model):
    """A process beside Kafka and the workers: a feed, a replica."""

    name: str = Field(pattern=r"^[a-zA-Z0-9][a-zA-Z0-9_-]{0,59}$")
    command: tuple[Word, ...] = Field(min_length=1)
    """The program and its arguments."""
    environment: dict[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")], Word] = {}
    """Variables over our own, and over those that `lmerge up` sets (`local.up.plan`)."""
    topics: tuple[str, ...] = ()
    """It begins when these exist."""
    after: tuple[str, ...] = ()
    """It begins when these processes of the same file have ended with 0."""
    restart: Restart | None = None
    """Instead of the section's."""

    @field_validator("name")
    @classmethod
    def _free(cls, name: str) -> str:
        if _OURS.fullmatch(name):
            raise ValueError(f"{name} is the name of what is started anyway: take another")
        return name

    @field_validator("command")
    @classmethod
    def _program(cls, command: tuple[str, ...]) -> tuple[str, ...]:
        if not command[0]:
            raise ValueError("begins with the name of a program")
        return command


class Up(_Model):
    """What is started, in no order but that of `topics` and `after`."""

    broker: Broker | None = None
    """None: the Kafka of `kafka.bootstrap`, which is there already."""
    workers: int = Field(default=1, ge=0, le=100)
    """Of this topology."""
    merges: tuple[str, ...] = ()
    """Other topologies, from this one's folder, that are started with it and on its Kafka."""
    restart: Restart = Restart()
    """Of workers, and of processes that have none of their own."""
    processes: tuple[Started, ...] = ()

    @model_validator(mode="after")
    def _possible(self) -> "Up":
        names = [each.name for each in self.processes]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"processes share the name {', '.join(twice)}")
        for each in self.processes:
            for name in each.after:
                if name not in names:
                    raise ValueError(f"process {each.name} comes after {name}, which is none")
        if round_ := next(self._rounds(), None):
            raise ValueError(f"processes wait for each other: {round_}")
        return self

    def _rounds(self) -> Iterator[str]:
        """Processes that would wait for themselves."""
        after = {each.name: each.after for each in self.processes}
        for name in after:
            seen: set[str] = set()
            ahead = list(after[name])
            while ahead:
                if (each := ahead.pop()) == name:
                    yield name
                    break
                ahead += [] if each in seen else after[each]
                seen.add(each)
