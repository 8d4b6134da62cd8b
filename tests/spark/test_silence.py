"""What a JVM writes to its standard error is on ours, but for one message of Spark's start."""

import subprocess
import sys
import threading

import pytest

from lmerge_service.spark.silence import filtered_stderr

PRINTS = """
print("Starting Streaming TransformWithStateInPandas Python worker.\\n")
print("Traceback (most recent call last):\\n\\n  a true error")
print("without an end of line", end="")
"""


def test_all_but_that_is_passed_on(capfd: pytest.CaptureFixture[str]) -> None:
    before = set(threading.enumerate())
    with filtered_stderr() as stderr:
        [passing] = set(threading.enumerate()) - before
        subprocess.run([sys.executable, "-c", PRINTS], stdout=stderr, check=True)
    passing.join(10)
    assert not passing.is_alive(), "the thread ends with the process"
    expected = "Traceback (most recent call last):\n\n  a true error\nwithout an end of line"
    assert capfd.readouterr().err == expected
