"""What an executor does before it reads."""

from __future__ import annotations

import subprocess
import sys

# What a chunk takes, some arrays of 8 MiB, gone before the next: their pages are had once, or anew each time.
_PROGRAM = """
import resource, numpy as np
from airflow_lakestream.spark.executors import ExecutorTask

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(3):
        [np.ones(2**20) for _ in range(16)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

faults()
first = faults()
try:
    ExecutorTask(*[None] * 12)(None)
except AttributeError:
    pass
faults()
print(first, faults())
"""


def test_memory_that_is_freed_is_kept_for_the_next_chunk() -> None:
    command = [sys.executable, "-c", _PROGRAM]
    before, after = map(int, subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())
    assert after < before / 10, (before, after)
