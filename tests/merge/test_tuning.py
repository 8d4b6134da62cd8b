"""What a process that merges asks of its interpreter and allocator."""

import gc
import platform
import subprocess
import sys

import pytest

from lmerge_service.merge.tuning import without_garbage_collector

_FETCHES = """
from lmerge_service.merge.tuning import return_large_blocks

def resident():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * 4096

if {returns}:
    return_large_blocks()
bytes(1 << 20)  # glibc takes this for a reason to put the next ones on its heap
before, kept = resident(), []
for _ in range(10):
    fetched = []
    for size in range(1, 9):
        fetched.append(b"x" * (size << 18))
        kept.append(b"y" * 2_000)
    del fetched
print(resident() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the setting is glibc's")
def test_large_blocks_go_back_to_the_system_though_small_ones_behind_them_stay() -> None:
    grown = [
        int(subprocess.check_output([sys.executable, "-c", _FETCHES.format(returns=returns)]))
        for returns in (True, False)
    ]
    assert grown[0] < 1 << 20
    assert grown[1] > 2 << 20, "the setting is not needed any more"


def test_a_state_that_was_read_without_the_collector_is_not_scanned_once_it_is_back() -> None:
    scanned: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            scanned.append(len(gc.get_objects(info["generation"])))

    gc.callbacks.append(note)
    try:
        with without_garbage_collector():
            state = [[n] for n in range(200_000)]
        following = [[n] for n in range(1_000)]
    finally:
        gc.callbacks.remove(note)
        gc.unfreeze()
    assert (len(state), len(following)) == (200_000, 1_000)
    assert all(number < 100_000 for number in scanned), scanned
