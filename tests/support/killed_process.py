"""A function that dies of its own SIGKILL, in a process of its own."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable


def kill() -> None:
    """Die at once: no handler, no cleanup."""
    os.kill(os.getpid(), signal.SIGKILL)


def run_until_killed(main: Callable[..., object], *given: object) -> None:
    """Run `main` in a process of its own, which has to die of its SIGKILL."""
    # Forked from a server that has imported everything and started nothing: seconds less than a new interpreter.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([main.__module__])
    process = context.Process(target=main, args=given)
    process.start()
    try:
        process.join(120)
        assert process.exitcode == -signal.SIGKILL, f"not killed: exit code {process.exitcode}"
    finally:
        process.kill()
