"""Logs of a trigger, written in a thread, never in the triggerer's event loop.

The triggerer's logs go through a pipe to its supervisor, and a thousand triggers that log at once can fill the pipe. A
loop that then waits for the pipe does not read the supervisor's messages, and both wait forever: observed with
Airflow 3.3.2 and 1,000 deferred sensors. Airflow's own log lines are still written in the loop.
"""

from __future__ import annotations

import asyncio
import logging


async def log_in_thread(log: logging.Logger, level: int, text: str, *arguments: object) -> None:
    """Log in a thread, in the caller's context with the id of the task."""
    if log.isEnabledFor(level):
        await asyncio.to_thread(log.log, level, text, *arguments)
