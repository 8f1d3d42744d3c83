"""End of a driver's program: the exit code, and the last line of the log."""

from __future__ import annotations

import logging
from collections.abc import Callable

from airflow_lakestream.exceptions import LakestreamError

log = logging.getLogger(__name__)


def exit_code_of(work: Callable[[], None], what: str) -> int:
    """Do a program's work; return 0, or 1 after an error, with the reason in the last line of the log.

    :param what: the program, for the log, such as `The app`.
    """
    try:
        work()
    except LakestreamError as e:
        log.error("%s: %s", type(e).__name__, " ".join(str(e).split()))
        return 1
    except Exception as e:
        # After any error the last line has the reason: people and supervisors read it there. The trace comes first.
        log.exception("%s failed.", what)
        log.error("%s: %s", type(e).__name__, next(iter(str(e).splitlines()), ""))
        return 1
    return 0
