"""What a JVM says on its standard error is said on ours, but for a process of Spark's beginning."""

import subprocess
import sys
import threading

import pytest

from lmerge_service.spark.hushing import heard

SAYS = """
print("Starting Streaming TransformWithStateInPandas Python worker.\\n")
print("Traceback (most recent call last):\\n\\n  a true error")
print("without an end of line", end="")
"""


def test_all_but_that_is_passed_on(capfd: pytest.CaptureFixture[str]) -> None:
    before = set(threading.enumerate())
    with heard() as stderr:
        [passing] = set(threading.enumerate()) - before
        subprocess.run([sys.executable, "-c", SAYS], stdout=stderr, check=True)
    passing.join(10)
    assert not passing.is_alive(), "it ends with who speaks"
    told = "Traceback (most recent call last):\n\n  a true error\nwithout an end of line"
    assert capfd.readouterr().err == told
