"""The lease of a Spark driver, tied to the JVM of `spark-submit`.

To end at once, the driver kills that JVM; if that JVM ends, the lease is released.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self

from airflow_lakestream.driver import lease
from airflow_lakestream.driver.lease import DriverTerminated
from airflow_lakestream.driver.lease import request_stop as request_stop
from airflow_lakestream.driver.lease_record import DriverOutcome
from airflow_lakestream.spark.configuration import AppSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class _LeaseRelease:
    """A java.lang.Runnable that releases the lease before the JVM ends."""

    def __init__(self, held_lease: lease.HeldLease) -> None:
        self._lease = held_lease

    def run(self) -> None:
        """Release the lease."""
        self._lease.release(DriverOutcome.FAILED, str(DriverTerminated()))

    class Java:
        """The Java interfaces of this class, for py4j."""

        implements = ("java.lang.Runnable",)


class Lease(lease.HeldLease):
    """A lease held by this process, see `airflow_lakestream.driver.lease.HeldLease`."""

    # The JVM's shutdown hook (a Java thread), or None before Spark has started.
    _hook: Any = None

    def __enter__(self) -> Self:
        from pyspark import SparkContext
        from pyspark.java_gateway import ensure_callback_server_started

        super().__enter__()
        gateway = SparkContext._gateway
        if gateway is not None:
            # In a pod only the JVM gets SIGTERM, and Python ends with it: the JVM waits for the release of the lease.
            ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]  # PySpark has no types here
            self._runtime = gateway.jvm.java.lang.Runtime.getRuntime()
            self._hook = gateway.jvm.java.lang.Thread(_LeaseRelease(self))
            self._runtime.addShutdownHook(self._hook)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, traceback)
        if self._hook is not None:
            from py4j.protocol import Py4JError

            with suppress(Py4JError, OSError):  # the JVM is ending, or gone
                self._runtime.removeShutdownHook(self._hook)

    def end_process(self) -> NoReturn:
        """End this process, and the JVM of `spark-submit` around the process, at once."""
        if "PYSPARK_GATEWAY_PORT" in os.environ:
            # A normal exit would wait for the hanging query. A JVM that this Python started ends with this process.
            os.kill(os.getppid(), signal.SIGKILL)
        super().end_process()


def take_lease(config: AppSettings, spark: SparkSession, location: str) -> Lease:
    """Take the lease of an app's checkpoint, or of `lease_location`. Raises LeaseHeld, OtherInputs."""
    context = spark.sparkContext
    return Lease.take(
        location,
        config.fingerprint,
        config.owner or f"{config.app} of nobody's",
        inputs=config.inputs,
        application_id=context.applicationId,
        ui_url=context.uiWebUrl or "",
        properties=config.store_properties,
    )
