"""Which allocator Arrow has in a task."""

from __future__ import annotations

import os
import subprocess
import sys

import pyarrow as pa
import pytest

_PROGRAM = """
import pyarrow as pa
from airflow_lakestream.operators.base import keep_freed_memory
keep_freed_memory()
print(pa.default_memory_pool().backend_name)
"""


@pytest.mark.long
@pytest.mark.parametrize("chosen", ["", "system", "mimalloc"])
def test_a_task_keeps_what_it_frees_unless_the_environment_chooses_the_allocator(chosen: str) -> None:
    kept = "jemalloc" if "jemalloc" in pa.supported_memory_backends() else pa.default_memory_pool().backend_name
    environment = {key: value for key, value in os.environ.items() if key != "ARROW_DEFAULT_MEMORY_POOL"}
    environment |= {"ARROW_DEFAULT_MEMORY_POOL": chosen} if chosen else {}
    told = subprocess.run([sys.executable, "-c", _PROGRAM], env=environment, check=True, capture_output=True, text=True)
    assert told.stdout.split()[-1] == (chosen or kept)
