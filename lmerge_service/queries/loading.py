"""Queries in Python files and modules: what `FILE:NAME` stands for.

A file is imported under its own name, and its folder can be imported from, so that the functions
and modules that a query names are found in every process that loads it in the same way.

    >>> import tempfile, pathlib
    >>> folder = tempfile.TemporaryDirectory()
    >>> file = pathlib.Path(folder.name) / "late_flights.py"
    >>> _ = file.write_text('''
    ... from lmerge_service.queries.expressions import col
    ... from lmerge_service.queries.plan import facts
    ... flights = facts("flights", time="time", fields={"delay": int})
    ... late = flights.where(col.delay > 15)
    ... ''')
    >>> list(queries_in(str(file)))
    ['flights', 'late']
    >>> print(load(f"{file}:late").schema)
    (delay: int)
    >>> load(f"{file}:early")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    lmerge_service.errors.ConfigurationError: ...late_flights.py has no query 'early'; there is \
flights, late
    >>> folder.cleanup()
"""

import sys
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from traceback import walk_tb
from types import ModuleType

from lmerge_service.errors import ConfigurationError
from lmerge_service.queries.plan import Query
from lmerge_service.queries.rows import described

__all__ = ("load", "queries_in")


def load(target: str) -> Query:
    """The query that `FILE:NAME` or `package.module:NAME` stands for.

    Raises:
        ConfigurationError: there is none, or the file cannot be imported; the message names the
            file and the line, or what there is instead.
    """
    place, colon, name = target.rpartition(":")
    if not colon:
        place = target
    module = _module(place)
    there = ", ".join(_queries(module)) or "none"
    if not colon:
        raise ConfigurationError(f"name a query of {place}, as {place}:NAME; there is {there}")
    found = vars(module).get(name)
    if found is None:
        raise ConfigurationError(f"{place} has no query {name!r}; there is {there}")
    if not isinstance(found, Query):
        raise ConfigurationError(f"{place}:{name} is {described(found)}, not a query: {there} are")
    return found


def queries_in(place: str) -> dict[str, Query]:
    """The queries of a file or module by name, in the order in which they are defined.

    Raises:
        ConfigurationError: it cannot be imported.
    """
    return _queries(_module(place))


def _queries(module: ModuleType) -> dict[str, Query]:
    return {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, Query) and not name.startswith("_")
    }


def _module(place: str) -> ModuleType:
    path = Path(place)
    if path.suffix == ".py" or path.exists() or path.name != place:
        return _of_file(path, place)
    try:
        return import_module(place)
    except ModuleNotFoundError as error:
        if error.name and f"{place}.".startswith(f"{error.name}."):
            raise ConfigurationError(f"there is neither a file nor a module {place!r}") from None
        raise _fault(place, error) from error
    except (Exception, SystemExit) as error:
        raise _fault(place, error) from error


def _of_file(path: Path, place: str) -> ModuleType:
    """The file as a module of its name, once for each process."""
    if not path.is_file():
        raise ConfigurationError(f"there is no file {place}")
    name, file = path.stem, str(path.resolve())
    if (known := sys.modules.get(name)) is not None:
        if getattr(known, "__file__", None) == file:
            return known
        raise ConfigurationError(
            f"{place} has the name of another module, {name!r}: give the file another name"
        )
    spec = spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ConfigurationError(f"{place} is no Python file: name it .py")
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.append(folder)  # behind all others, so that it hides none
    module = sys.modules[name] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise _fault(place, error, file) from error
    return module


def _fault(place: str, error: BaseException, file: str | None = None) -> ConfigurationError:
    """The error as one line: the last line of the file that was reached, and what went wrong."""
    line = error.lineno if isinstance(error, SyntaxError) else None
    where = error.filename if isinstance(error, SyntaxError) else None
    if where is None or (file is not None and where != file):
        frames = [(frame.f_code.co_filename, at) for frame, at in walk_tb(error.__traceback__)]
        own = [at for name, at in frames if file is None or name == file]
        line = own[-1] if file is not None and own else line
    at = place if line is None else f"{place}:{line}"
    what = str(error) if isinstance(error, ConfigurationError) else _described(error)
    return ConfigurationError(f"{at}: {' '.join(what.split())}")


def _described(error: BaseException) -> str:
    kind = type(error).__name__
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{kind}: {text}" if text else kind
