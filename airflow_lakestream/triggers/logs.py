"""How a trigger logs: in a thread, never in the triggerer's event loop.

The triggerer's logs go through a pipe to its supervisor, which a thousand triggers logging at once can fill. A loop
that then waits for the pipe reads nothing of what the supervisor sends meanwhile, and both wait forever: seen with
Airflow 3.3.2 and 1,000 deferred sensors. Airflow's own log lines are still written in the loop.
"""

from __future__ import annotations

import asyncio
import logging


async def tell(log: logging.Logger, level: int, text: str, *arguments: object) -> None:
    """Log in a thread, in the caller's context, which identifies the task."""
    if log.isEnabledFor(level):
        await asyncio.to_thread(log.log, level, text, *arguments)
