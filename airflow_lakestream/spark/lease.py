"""The lease of a Spark driver: to end at once, it takes the JVM of `spark-submit` with it."""

from __future__ import annotations

import os
import signal
from typing import NoReturn

from airflow_lakestream.driver import lease
from airflow_lakestream.driver.lease import request_stop as request_stop


class Lease(lease.Lease):
    """A lease held by this process, see `airflow_lakestream.driver.lease.Lease`."""

    def end_process(self) -> NoReturn:
        """End this process, and the JVM of `spark-submit` around it, at once."""
        if "PYSPARK_GATEWAY_PORT" in os.environ:
            # A normal exit would wait for the hanging query. A JVM that this Python started ends with it.
            os.kill(os.getppid(), signal.SIGKILL)
        super().end_process()
