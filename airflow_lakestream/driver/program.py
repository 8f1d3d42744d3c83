"""How a driver's program ends: its exit code, and what the last line of its log says."""

from __future__ import annotations

import logging
from collections.abc import Callable

from airflow_lakestream.exceptions import LakestreamError

log = logging.getLogger(__name__)


def exit_code_of(work: Callable[[], None], what: str) -> int:
    """Do a program's work; return 0, or 1 where it fails, with the reason in the last line of the log.

    :param what: the program, for the log, such as `The app`.
    """
    try:
        work()
    except LakestreamError as e:
        log.error("%s: %s", type(e).__name__, " ".join(str(e).split()))
        return 1
    except Exception as e:
        # Whatever ends a program, its last line says so: people look there, and supervisors read it. The trace first.
        log.exception("%s failed.", what)
        log.error("%s: %s", type(e).__name__, next(iter(str(e).splitlines()), ""))
        return 1
    return 0
