"""An app's work without a query: under a lease and with progress, if a location for both is given."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_lakestream.driver.progress import BatchProgress, ProgressLog
from airflow_lakestream.run.progress import batch_progress
from airflow_lakestream.run.summary import last_line
from airflow_lakestream.spark.app_config import AppConfig
from airflow_lakestream.spark.inputs import take_lease
from airflow_lakestream.spark.lease import Lease
from airflow_lakestream.spark.micro_batch import MicroBatches
from airflow_lakestream.spark.pulse import ProgressReporter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class AppSupervision:
    """Progress, signs of life and lease of a working app; without supervision all fields are None."""

    progress: ProgressLog | None = None
    pulse: ProgressReporter | None = None
    lease: Lease | None = None

    def report(self, done: BatchProgress) -> None:
        """Report a finished piece of work."""
        if self.progress is not None:
            self.progress.report(done)

    def begin(self, work: str) -> None:
        """Report the start of a step."""
        if self.pulse is not None:
            self.pulse.begin(work)

    def is_over(self) -> bool:
        """Return whether the app was asked to end after the current step; False without a lease. Raises LeaseLost."""
        if self.lease is None:
            return False
        self.lease.check()
        return self.lease.stop_requested()


@contextmanager
def supervised(
    spark: SparkSession,
    work: str,
    take: Callable[[str], Lease],
    location: str | None,
    properties: Mapping[str, str] | None = None,
) -> Iterator[AppSupervision]:
    """Hold a lease and give signs of life while an app works; without a location, do neither.

    :param work: the work, in words.
    :param take: takes the lease of a location.
    :param location: path or URI; lease and progress are in `<location>.lakestream`.
    :param properties: the catalog's, for a location in its object store.

    Raises the errors of `take`.
    """
    if location is None:
        yield AppSupervision()
        return
    with take(location) as lease:
        progress = ProgressLog(location, properties)
        with ProgressReporter(spark, progress, is_idle=lambda: False) as pulse:
            pulse.begin(work)
            yield AppSupervision(progress, pulse, lease)


def land_at_once(config: AppConfig, spark: SparkSession) -> None:
    """Land an interval or ranges, in a single snapshot.

    A lease is held if the configuration has a `lease_location`. Raises the errors of a landing, LeaseHeld, OtherInputs.
    """

    def take(location: str) -> Lease:
        return take_lease(config, spark, location)

    work = f"landing {config.landing['mode']}"
    with supervised(spark, work, take, config.lease_location, config.store_properties) as supervision:
        started = time.monotonic()
        report = MicroBatches(config, spark, pulse=supervision.pulse).land(config.run_id or uuid.uuid4().hex)
        supervision.report(batch_progress(0, report, time.monotonic() - started))
    log.info("%s", last_line(report, config.extract))
