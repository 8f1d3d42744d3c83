"""The operator, measured until its driver's process is gone, as a bare `spark-submit` is."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import psutil

from airflow_lakestream.operators.spark_streaming_submit import SparkStreamingSubmitOperator

if TYPE_CHECKING:
    from airflow.sdk import Context


class SubmitToTheEnd(SparkStreamingSubmitOperator):
    """Returns when its driver has ended, and not when that has said that it is done: the JVM's own end comes after."""

    def execute(self, context: Context) -> dict[str, Any]:
        """Run it, and wait for what is left of the driver."""
        report = super().execute(context)
        assert self._supervisor is not None
        assert self._supervisor.handle is not None
        process = self._supervisor.handle.process
        if process is not None:
            with suppress(psutil.NoSuchProcess):
                psutil.Process(process.pid).wait()
        return report
