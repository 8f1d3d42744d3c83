"""How a trigger logs: in a thread, never in the triggerer's event loop.

The triggerer's logs go through a pipe to its supervisor. A thousand triggers that say a line each at once fill it; a
loop that waits for it to be emptied reads nothing of what its supervisor is sending meanwhile, and the two wait for
each other without end: seen with Airflow 3.3.2 and 1,000 deferred sensors. The lines that Airflow itself logs in the
loop stay there.
"""

from __future__ import annotations

import asyncio
import logging


async def tell(log: logging.Logger, level: int, text: str, *arguments: object) -> None:
    """Log in a thread, in the caller's context, which says whose line it is."""
    if log.isEnabledFor(level):
        await asyncio.to_thread(log.log, level, text, *arguments)
