"""Functions of a process with bounds: the queue of requests, the bounds, and the end together with the parent.

`process` starts such a process as a new interpreter, without memory, secrets or locks of a task.
"""

from __future__ import annotations

import contextlib
import io
import os
import queue
import resource
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from airflow_lakestream.transform.bounds import TOO_LARGE, ProcessBounds
from airflow_lakestream.transform.messages import receive

OUT_OF_MEMORY = (duckdb.OutOfMemoryException, MemoryError, pa.ArrowMemoryError)

RequestQueue = queue.SimpleQueue[tuple[dict[str, Any], pa.Table]]


def listening() -> tuple[RequestQueue, io.FileIO]:
    """Return the queue of the parent's requests, which a thread fills, and the pipe for answers.

    After this call, this process ignores SIGINT and SIGTERM, ends with the parent, prints to the standard error only,
    and can't import pandas.
    """
    sys.meta_path.insert(0, _NoPandas())
    # Both signals reach all processes of a terminal or container. The parent decides, and this process ends with it.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    # Keep prints out of the answers.
    os.dup2(2, 1)
    requests: RequestQueue = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(sys.stdin.fileno(), requests), daemon=True).start()
    return requests, answers


class _NoPandas:
    """Import hook that hides pandas: Arrow and DuckDB would import it without need, for twice the start-up time."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name=name)


def memory_error_text(error: BaseException) -> str:
    """Return the text of an error about too little memory."""
    # After the first line DuckDB advises settings that users can't change.
    return str(error).partition("\n")[0] or "there is no more"


class ProcessorTimer:
    """Limit of a block's processor time in seconds; beyond the limit SIGPROF ends this process.

    The clock counts all threads of the process, and stops while other processes have the processors.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __enter__(self) -> None:
        signal.setitimer(signal.ITIMER_PROF, self._seconds)

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _listen(source: int, requests: RequestQueue) -> None:
    """Move the parent's requests from a file descriptor to a queue; end this process at the end of the pipe."""
    try:
        with os.fdopen(source, "rb", buffering=0, closefd=False) as pipe:
            while True:
                requests.put(receive(pipe))
    except MemoryError:
        os._exit(TOO_LARGE)
    finally:
        # EOF comes even during a statement, and even if the parent was killed: only the parent has its end of the pipe.
        os._exit(0)


def be_bounded(bounds: ProcessBounds) -> None:
    """Set the bounds of this process.

    On Linux the kernel enforces the limit of memory; elsewhere a thread ends the process. SIGPROF, which
    `ProcessorTimer` uses, ends the process.
    """
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGPROF})
    # A core file would hold records.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if not sys.platform.startswith("linux"):
        # macOS does not enforce a memory limit.
        threading.Thread(target=watch_memory, args=(bounds.memory,), daemon=True).start()
        return
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = bounds.data if hard == resource.RLIM_INFINITY else min(bounds.data, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    # If memory gets short, the kernel should kill this process, not the task.
    with contextlib.suppress(OSError), Path("/proc/self/oom_score_adj").open("w") as score:
        score.write("1000")


def watch_memory(most: int) -> None:
    """End this process soon after a use of more than `most` bytes; runs in a thread of its own."""
    unit = 1 if sys.platform == "darwin" else 1024
    while resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit <= most:
        time.sleep(0.02)  # The system reports no growth of memory.
    os._exit(TOO_LARGE)
