"""Spark's errors, translated into ours: one line instead of a Java stack."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException

from lmerge_service.errors import ConfigurationError, LMergeError, StateError, TransportError

__all__ = ("spark_errors",)

_LOST: Final = re.compile(
    r"Some data may have been lost because .*?Reason:\s*(.*?\.)(?:\s|$)", re.S
)
_PLACES: Final = (
    r"in offset \[(?P<offset>\d+), .* for topic partition (?P<place>\S+)",
    r"Added partition (?P<place>\S+) starts from \d+ instead of (?P<offset>0)",
    r"Partition (?P<place>\S+) offset was changed from (?P<offset>\d+) to \d+",
    r"Starting offset for (?P<place>\S+) was (?P<offset>\d+) but",
)
_OF_KAFKA: Final = re.compile(r"org\.apache\.kafka\.[\w.]*\.(\w+Exception): ?(.*)")
_RAISED: Final = re.compile(r"\[USER_RAISED_EXCEPTION\] (.*?)$", re.MULTILINE)
_WORKER: Final = re.compile(r"Python worker (failed to connect back|exited unexpectedly)")
_CONCURRENT: Final = re.compile(r"\bDELTA_CONCURRENT_|\bio\.delta\.exceptions\.\w*Exception")
_PYTHON: Final = re.compile(r"^lmerge_service\.errors\.\w+: (.*)$", re.MULTILINE)
_JAVA: Final = re.compile(r"^: [\w.$]+: (.*?)$", re.MULTILINE)
_AROUND: Final = re.compile(
    r"^(?:Job aborted due to stage failure: .*? executor \S+\): [\w.$]+: )?"  # what a task died of
    r"(?:\[[A-Z][A-Z_.\d]*\] )?|\s*SQLSTATE: \w+\s*$"
)
"""The parts of a message that are of no use to a user."""


@contextmanager
def spark_errors(doing: str) -> Iterator[None]:
    """Translates what Spark raises; `doing` begins the message, the cause is kept.

    Raises:
        ConfigurationError: Spark refuses the query: no such path, column or option.
        TransportError: Kafka cannot be reached, or refuses.
        StateError: a file is damaged, or not what it should be; a topic has lost records that
            were to be read; a table was changed by others meanwhile.
        LMergeError: Spark lost a Python worker; the same again may well succeed.
    """
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:  # of most of Java's PySpark makes no own
        raise _translated(doing, error) from error


def _translated(doing: str, error: PySparkException | Py4JJavaError) -> LMergeError:
    text = str(error)
    if found := _LOST.search(text):
        return StateError(f"{doing}: {_lost(found[1])}")
    if found := _OF_KAFKA.search(text):
        why = found[2].strip() or found[1]
        late = "Kafka does not answer: " if found[1] == "TimeoutException" else ""
        return TransportError(f"{doing}: {late}{why}")
    if _CONCURRENT.search(text):
        return StateError(f"{doing}: another process has changed the table: start again")
    if found := _RAISED.search(text) or _PYTHON.search(text):
        return StateError(f"{doing}: {_gist(found[1])}")
    if found := _WORKER.search(text):
        return LMergeError(
            f"{doing}: a Python worker of Spark {found[1]}: is this machine out of memory, or too "
            "busy to start one in ten seconds? What was done is kept: start it again"
        )
    if found := _JAVA.search(text):
        return StateError(f"{doing}: {_gist(found[1])}")
    gist = _gist(next(filter(None, map(str.strip, text.splitlines())), type(error).__name__))
    if isinstance(error, AnalysisException):
        return ConfigurationError(f"{doing}: {gist}")
    return StateError(f"{doing}: {gist}")


def _lost(reason: str) -> str:
    """
    >>> _lost("Could not read records in offset [3, 9) for topic partition t-0")
    't-0@3: these records are not in Kafka any more, and were not read yet: retention has deleted \
them, or the topic was recreated'
    """
    where = next(filter(None, (re.search(each, reason) for each in _PLACES)), None)
    place = " ".join(reason.split()) if where is None else f"{where['place']}@{where['offset']}"
    return (
        f"{place}: these records are not in Kafka any more, and were not read yet: retention has "
        "deleted them, or the topic was recreated"
    )


def _gist(message: str) -> str:
    """
    >>> _gist("[FAILED_READ_FILE.NO_HINT] Error while reading file:///a.  SQLSTATE: KD001")
    'Error while reading file:///a.'
    """
    return _AROUND.sub("", message).strip()
