"""Reports of a task about the driver while it runs: log lines, an XCom, links and metrics."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_lakestream.driver.progress import DriverProgress
from airflow_lakestream.driver.supervisor import DriverLook, DriverState
from airflow_lakestream.links import push_pages
from airflow_lakestream.metrics import measure_batches, measure_restart, tags_of

log = logging.getLogger(__name__)

XCOM_KEY = "progress"
_COUNTS = ("batches", "rows_in", "rows_out", "rejected", "skipped", "filtered", "bad")
# Seconds between two log lines about the steps of a batch.
STEP_LOG_INTERVAL_S = 60.0


class TaskReport:
    """Reports of a task about a driver, each event once: in the log, in metrics, as XCom and as links.

    :param ti: the task instance.
    :param begun: the sums before the run, in the form of `DriverProgress.sums`, which are subtracted.
    :param names: `topic`, `table` and `consumer_group`, if known, for the report.
    :param engine: the engine's name in metrics.
    :param driver_pages: links with their addresses, in which `{url}` is the address in the lease.
    """

    def __init__(
        self,
        ti: Any,
        begun: dict[str, Any],
        names: Mapping[str, Any],
        engine: str,
        driver_pages: Sequence[tuple[Any, str]] = (),
    ) -> None:
        self._ti = ti
        self._tags = tags_of(ti, names, engine=engine)
        self._driver_pages = driver_pages
        self._started_generation = 0
        self._driver = ""
        self._names = {name: names[name] for name in ("topic", "table", "consumer_group") if name in names}
        self._logged_step, self._step_logged_at = "", time.monotonic()
        self.begun = begun
        self.restarts = 0
        self.progress = DriverProgress()

    def __call__(self, look: DriverLook) -> None:
        """Report the changes since the last look: the driver's start and state, the batches, and the progress."""
        if look.progress.batches >= self.progress.batches:
            self.progress = look.progress
        if look.lease is not None and look.sight.driver is not DriverState.STARTING:
            self._report_start(look)
        if look.sight.driver != self._driver:
            self._driver = look.sight.driver
            log.info("The driver is %s%s", self._driver, f": {look.sight.error}" if look.sight.error else "")
        for batch in look.batches:
            log.info("%s", batch)
        measure_batches(look.batches, self._tags)
        if self._log_step() or look.batches:
            self._ti.xcom_push(key=XCOM_KEY, value=self.summary() | {"doing": self.progress.doing})

    def _log_step(self) -> bool:
        """Log the driver's step if it is new and the last line is old enough; return whether a line was logged."""
        doing, now = self.progress.doing, time.monotonic()
        if doing == self._logged_step or now - self._step_logged_at < STEP_LOG_INTERVAL_S:
            return False
        self._logged_step, self._step_logged_at = doing, now
        log.info("%s", doing)
        return True

    def report(self) -> dict[str, Any]:
        """Return the report of the run's landings: `summary()`, and keys named as in `KafkaExtractOperator`'s report.

        Offset ranges are in `ranges` for a single topic, and in `topics`, by topic, if topics come from a regex. If
        nothing has landed, `ranges` is empty in both cases.
        """
        since = self.progress.since(self.begun)
        topics: dict[str, list[list[int]]] = {}
        for topic, *landed in since["landed"]:
            topics.setdefault(topic, []).append(landed)
        single_topic = str(self._names.get("topic"))
        ranges: dict[str, Any] = {"ranges": topics.get(single_topic, [])}
        if topics and single_topic not in topics:
            ranges = {"topics": {topic: {"ranges": topics[topic]} for topic in sorted(topics)}}
        return {
            **self._names,
            **self.summary(),
            "read": since["rows_in"],
            "rows": since["rows_out"],
            "tables": since["tables"],
            **ranges,
        }

    def summary(self) -> dict[str, Any]:
        """Return the sums since the run began, and the newest batch."""
        since = self.progress.since(self.begun)
        newest = self.progress.newest
        return {
            **{name: since[name] for name in _COUNTS},
            "restarts": self.restarts,
            "lag": newest.lag if newest else None,
            "input_rate": newest.input_rate if newest else None,
            "processing_rate": newest.processing_rate if newest else None,
            "batch_duration": newest.duration if newest else None,
            "batch_id": newest.batch_id if newest else None,
            "snapshot_ids": list(newest.snapshot_ids) if newest else [],
        }

    def push_links(self, topic_url: str | None, table_url: str | None) -> None:
        """Link to the pages of topic and table, if any."""
        push_pages(self._ti, self._names, topic_url, table_url)

    @property
    def links_afterwards(self) -> dict[str, str]:
        """Addresses of the driver's links after the end: the task's log, with the last lines of the driver's log."""
        return {link.xcom_key: self._ti.log_url for link, _ in self._driver_pages}

    def push_end_links(self) -> None:
        """Set the driver's links to their addresses after the end."""
        for key, url in self.links_afterwards.items():
            self._ti.xcom_push(key=key, value=url)

    def report_restart(self, reason: str) -> None:
        """Report a restart."""
        self.restarts += 1
        measure_restart(self._tags)
        log.warning("Restart %s, since the driver %s", self.restarts, reason)

    def report_failure(self, reason: str, log_tail: list[str]) -> None:
        """Log a driver's failure, and the last lines of the driver's log."""
        log.warning("The driver %s", reason)
        for line in log_tail:
            log.warning("driver: %s", line)

    def _report_start(self, look: DriverLook) -> None:
        """Log a driver that was not seen before, and push its links."""
        lease = look.lease
        assert lease is not None, "the driver works, so it has taken its lease"
        if lease.generation <= self._started_generation:
            return
        self._started_generation = lease.generation
        log.info("Driver: %s; its pages: %s", lease, lease.ui_url or "none")
        if lease.ui_url:
            for link, address in self._driver_pages:
                self._ti.xcom_push(key=link.xcom_key, value=address.replace("{url}", lease.ui_url))
