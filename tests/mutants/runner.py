"""The pytest plugin that runs the collected tests against mutants, each in a process of its own.

A process is forked when all is imported and collected; it changes one function in place, and ends
with the first test that fails. Only the tests that call the function are run: those first that have
killed most in its module, then the fastest, properties last.
"""

import ast
import gc
import importlib
import os
import resource
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import IO, NoReturn

import pytest
from hypothesis import HealthCheck, Phase, is_hypothesis_test, settings

from tests.mutants.operators import mutants_of

__all__ = ("Outcome", "Runner", "mutate")

# tests/conftest.py loads it: HYPOTHESIS_PROFILE=mutants
settings.register_profile(
    "mutants",
    max_examples=30,
    database=None,
    deadline=None,
    derandomize=True,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=[HealthCheck.too_slow],
)
_SECONDS = 5
_TIMES_SLOWER = 10
"""A test has this many seconds of processor time beyond this many times what it took without a
mutant; a loop that does not end is killed whatever else the machine does."""
_SECONDS_OF_WAITING = 300
_BYTES = 4 << 30
_SURVIVED, _KILLED, _BROKEN = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a mutant, or, without an id, of the code as it is."""

    id: str
    killed_by: str | None
    """the test that failed, None if all passed"""


@dataclass(frozen=True, slots=True)
class _Run:
    """What a process runs: the tests, in order, against a mutant."""

    id: str
    items: Sequence[pytest.Item]


class Runner:
    """Runs the tests on the code as it is, then against each mutant; `outcomes` has all."""

    def __init__(self, ids: Sequence[str], jobs: int = 1) -> None:
        self.outcomes: list[Outcome] = []
        self._ids = ids
        self._jobs = jobs
        self._seconds: dict[str, float] = {}
        self._called: dict[str, set[str]] = {}
        self._kills: defaultdict[str, Counter[str]] = defaultdict(Counter)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed or session.config.option.collectonly:
            return False
        for name in {_module(each) for each in self._ids}:
            importlib.import_module(name)
        self.outcomes.extend(self._forked(session, [""]))
        if self.outcomes[0].killed_by is None:
            for number, outcome in enumerate(self._forked(session, self._ids), start=1):
                self.outcomes.append(outcome)
                state = f"killed by {outcome.killed_by}" if outcome.killed_by else "SURVIVED"
                print(f"[{number}/{len(self._ids)}] {outcome.id} {state}", flush=True)
        return True

    def _forked(self, session: pytest.Session, ids: Sequence[str]) -> Iterator[Outcome]:
        """Runs a process for each mutant, a few at a time, and yields what became of it."""
        running: dict[int, _Run] = {}
        waiting = list(reversed(ids))
        with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
            while waiting or running:
                while waiting and len(running) < self._jobs:
                    run = _Run(waiting[-1], self._chosen(session.items, waiting.pop()))
                    if (pid := os.fork()) == 0:
                        self._in_child(session, run, Path(folder))
                    running[pid] = run
                pid, status = os.wait()
                lines = Path(folder, str(pid)).read_text().splitlines()
                yield self._outcome(running.pop(pid), os.waitstatus_to_exitcode(status), lines)

    def _chosen(self, items: Sequence[pytest.Item], id_: str) -> Sequence[pytest.Item]:
        """The tests that call the mutated function, in the order of the module's text."""
        if not id_:
            return items
        kills, function = self._kills[_module(id_)], id_.partition("/")[0]

        def key(item: pytest.Item) -> tuple[int, bool, float]:
            return -kills[item.nodeid], _is_property(item), self._seconds[item.nodeid]

        return sorted((each for each in items if function in self._called[each.nodeid]), key=key)

    def _in_child(self, session: pytest.Session, run: _Run, folder: Path) -> NoReturn:
        try:
            with Path(folder, str(os.getpid())).open("w") as log:
                os._exit(self._tested(session, run, log))
        finally:
            os._exit(_BROKEN)

    def _tested(self, session: pytest.Session, run: _Run, log: IO[str]) -> int:
        """Runs the tests; logs the number of each that begins, then its time and what it calls."""
        try:
            devnull = os.open(os.devnull, os.O_RDWR)
            for stream in range(3):
                os.dup2(devnull, stream)
            for plugin in ("terminalreporter", "timeout"):  # `_limit` is by processor time
                session.config.pluginmanager.unregister(name=plugin)
            resource.setrlimit(resource.RLIMIT_AS, (_BYTES, _BYTES))
            if run.id:
                mutate(run.id)
            for number, item in enumerate(run.items):
                print(number, file=log, flush=True)
                following = run.items[number + 1] if number + 1 < len(run.items) else None
                self._limit(item)
                before = time.process_time()
                with _calls(record=not run.id) as called:
                    session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                if session.testsfailed:
                    return _KILLED
                if not run.id:
                    print(time.process_time() - before, *called, file=log, flush=True)
        except BaseException as error:  # whatever it is, this process has to end here
            print(repr(error), file=log, flush=True)
            return _BROKEN
        return _SURVIVED

    def _limit(self, item: pytest.Item) -> None:
        seconds = _SECONDS + _TIMES_SLOWER * self._seconds.get(item.nodeid, _SECONDS_OF_WAITING)
        signal.setitimer(signal.ITIMER_PROF, seconds)
        signal.setitimer(signal.ITIMER_REAL, _SECONDS_OF_WAITING + seconds)

    def _outcome(self, run: _Run, code: int, lines: Sequence[str]) -> Outcome:
        if code == _BROKEN:
            raise RuntimeError(f"the tests could not run on {run.id or 'the code'}: {lines[-1:]}")
        if code != _SURVIVED:  # by a test that failed, or by a signal at a limit
            killer = run.items[int(lines[-1])].nodeid
            self._kills[_module(run.id)][killer] += 1
            return Outcome(run.id, killer)
        if not run.id:
            for item, line in zip(run.items, lines[1::2], strict=True):
                seconds, *called = line.split()
                self._seconds[item.nodeid], self._called[item.nodeid] = float(seconds), set(called)
        return Outcome(run.id, None)


@contextmanager
def _calls(*, record: bool) -> Iterator[set[str]]:
    """The functions of lmerge_service that are called meanwhile, as module:function."""
    called: set[str] = set()
    if not record:
        yield called
        return
    seen: set[tuple[CodeType, str]] = set()

    def profile(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call":
            seen.add((frame.f_code, frame.f_globals.get("__name__", "")))

    sys.setprofile(profile)
    try:
        yield called
    finally:
        sys.setprofile(None)
        for code, module in seen:
            if module.startswith("lmerge_service."):
                called.add(f"{module}:{code.co_qualname.partition('.<locals>')[0]}")


def _module(id_: str) -> str:
    return id_.partition(":")[0]


def _is_property(item: pytest.Item) -> bool:
    """It draws examples, whether by `given` or as a state machine."""
    return is_hypothesis_test(getattr(item, "obj", None)) or item.name == "runTest"


def mutate(id_: str) -> None:
    """Changes a function of an imported module in place, in this process.

    Raises:
        LookupError: there is no such mutant, or no such function in this process.
    """
    path = Path(str(importlib.import_module(_module(id_)).__file__))
    tree = ast.parse(path.read_text())
    mutant = next((each for each in mutants_of(tree, _module(id_)) if each.id == id_), None)
    if mutant is None:
        raise LookupError(f"no mutant {id_}")
    original = _code(compile(tree, str(path), "exec"), mutant.function)
    mutant.apply()
    if "__class__" in original.co_freevars:  # where `super()` has gone, the cell must stay
        mutant.function.body.append(_reference("__class__", mutant.function))
    mutated = _code(compile(tree, str(path), "exec"), mutant.function)
    gc.unfreeze()  # a command that was tested in this process has frozen what there was
    functions = [each for each in gc.get_objects() if type(each) is FunctionType]
    alive = [each for each in functions if _identity(each.__code__) == _identity(original)]
    if not alive:
        raise LookupError(f"no function in this process has {id_}")
    for function in alive:
        function.__code__ = mutated


def _identity(code: CodeType) -> tuple[str, str, int]:
    return code.co_filename, code.co_qualname, code.co_firstlineno


def _code(scope: CodeType, function: ast.FunctionDef | ast.AsyncFunctionDef) -> CodeType:
    """The code of a function in that of its module."""
    first = min([function.lineno, *(each.lineno for each in function.decorator_list)])
    for constant in scope.co_consts:
        if isinstance(constant, CodeType):
            if (constant.co_firstlineno, constant.co_name) == (first, function.name):
                return constant
            if constant.co_firstlineno <= first:
                try:
                    return _code(constant, function)
                except LookupError:
                    continue
    raise LookupError(f"no code of {function.name}")


def _reference(name: str, function: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.Expr:
    node = ast.Expr(ast.Name(name, ast.Load()))
    return ast.fix_missing_locations(ast.copy_location(node, function.body[-1]))
