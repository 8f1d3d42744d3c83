"""Metrics named `lakestream.*`, sent through Airflow's metrics. See docs/metrics.md.

Counters and timers are sent immediately: even a failed run has reported its landings.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import Stats, conf

if TYPE_CHECKING:
    from airflow_lakestream.core.landing.job import CommittedLanding
    from airflow_lakestream.driver.progress import BatchProgress

log = logging.getLogger(__name__)

_PREFIX = "lakestream"
_SIZE = "added-files-size"
_UNSAFE = re.compile(r"[^A-Za-z0-9_./-]")  # characters that Airflow refuses in a metric's name
# Characters: Airflow's limit for a metric's name, and the least that is left of a shortened tag, its digest included.
_LONGEST_NAME, _SHORTEST_TAG = 250, 24
# By a sensor's check: the values in its answer, and the gauge that each sets.
_OF_SENSORS: Mapping[str, Mapping[str, str]] = {
    "freshness": {"age": "freshness"},
    "checkpoint_lag": {"lag": "lag", "seconds": "lag_seconds"},
    "retention_risk": {"time_left": "time_left"},
}
# The tags that identify a stream; a sensor has only some.
_OF_STREAM = ("table", "topic", "consumer_group")


def tags_of(ti: Any, stream: Mapping[str, Any], **more: str) -> dict[str, str]:
    """Return the tags of a task's metrics: dag_id, task_id, and, if known, table, topic and consumer group.

    :param ti: the task instance, or None if unknown.
    :param stream: the operator's arguments, or other values by the names of the tags.
    :param more: further tags.
    """
    task = {} if ti is None else {"dag_id": ti.dag_id, "task_id": ti.task_id}
    return {**task, **{name: str(stream[name]) for name in _OF_STREAM if stream.get(name)}, **more}


class LandingMeter:
    """Callback that measures each commit of a run in the worker.

    :param tags: from `tags_of`.
    :param lake: the table's catalog, or the storage of Delta tables. The meter reads from there the bytes of a commit
        (Iceberg only), and the small files and delete files after the commit. None: files are not measured.
    """

    def __init__(self, tags: Mapping[str, str], lake: Any = None) -> None:
        self._tags = dict(tags)
        self._lake = lake

    def __call__(self, committed: CommittedLanding) -> None:
        """Measure a commit: rows for each topic; the commit and its bytes for all topics together."""
        landing = committed.landing
        topics = sorted({identity.topic for identity in landing.topics})
        tags = {**self._tags, "table": committed.table}
        for topic in topics:
            counts = [entry.counts for identity, entry in landing.topics.items() if identity.topic == topic]
            _count("rows", sum(count.written for count in counts), {**tags, "topic": topic})
            _count("rejected", sum(count.rejected for count in counts), {**tags, "topic": topic})
        tags["topic"] = ",".join(topics)
        _count("landings", 1, tags)
        _time("commit", committed.seconds, tags)
        if self._lake is not None:
            self._measure_files(committed, tags)

    def _measure_files(self, committed: CommittedLanding, tags: dict[str, str]) -> None:
        """Set the gauges of the table's files after a commit, and count the bytes that the commit added."""
        try:
            from airflow_lakestream.lakes import LakeCapability, lake_of

            lake = lake_of(committed.table)
            streams = lake.part("books").at(self._lake, committed.table)
            # A Delta commit has no sum of the bytes that it wrote.
            if LakeCapability.CATALOG in lake.can:
                snapshot = streams.table.snapshot_by_id(committed.snapshot_id)
                summary = snapshot.summary.additional_properties if snapshot and snapshot.summary else {}
                _count("bytes", int(summary.get(_SIZE, 0)), tags)
            file_use = streams.files
            _gauge("small_files", file_use.small, tags)
            _gauge("delete_files", file_use.delete_files or 0, tags)
        except Exception as e:  # noqa: BLE001  # the commit is done; a missing number must not fail its run
            log.debug("The files of snapshot %s are not measured: %s", committed.snapshot_id, e)


def measure_lag(offsets: int | None, tags: Mapping[str, str]) -> None:
    """Set the gauge of offsets left to land; ignore None."""
    if offsets is not None:
        _gauge("lag", offsets, tags)


def measure_batches(batches: Iterable[BatchProgress], tags: Mapping[str, str]) -> None:
    """Measure batches of a driver, in order. Gauges are set by the newest batch."""
    newest = None
    for newest in batches:
        _count("landings", len(newest.snapshot_ids), tags)
        _count("rows", newest.rows_out, tags)
        _count("rejected", newest.rejected, tags)
        _time("batch", newest.duration, tags)
    if newest is not None:
        _gauge("input_rate", newest.input_rate, tags)
        _gauge("processing_rate", newest.processing_rate, tags)
        measure_lag(newest.lag, tags)


def measure_restart(tags: Mapping[str, str]) -> None:
    """Count a restart of a driver."""
    _count("restarts", 1, tags)


def measure_alert(kind: str, tags: Mapping[str, str]) -> None:
    """Count an alert of a kind: failure or deadline."""
    _count("alerts", 1, {**tags, "kind": kind})


def measure_look(check: str, value: Mapping[str, Any] | None, tags: Mapping[str, str]) -> None:
    """Set the gauges of a sensor from its look.

    :param check: the name of the sensor's check; a check without gauges is ignored.
    :param value: the sensor's answer; None, and values that are None, are ignored.
    """
    for name, gauge in _OF_SENSORS.get(check, {}).items():
        if value is not None and value.get(name) is not None:
            _gauge(gauge, value[name], tags)


def _count(name: str, number: int, tags: Mapping[str, str]) -> None:
    Stats.incr(f"{_PREFIX}.{name}", number, tags=_sent(name, tags))


def _gauge(name: str, value: float, tags: Mapping[str, str]) -> None:
    Stats.gauge(f"{_PREFIX}.{name}", value, tags=_sent(name, tags))


def _time(name: str, seconds: float, tags: Mapping[str, str]) -> None:
    Stats.timing(f"{_PREFIX}.{name}", seconds * 1000, tags=_sent(name, tags))


def _sent(name: str, tags: Mapping[str, str]) -> dict[str, str]:
    """Return the tags in the form for Airflow's metrics.

    With `statsd_influxdb_enabled` Airflow puts the tags into the metric's name, and limits the name's characters and
    length. So unsafe characters are replaced, and the longest values are shortened and end with a digest.

    :param name: the metric's name without the prefix.
    """
    if not conf.getboolean("metrics", "statsd_influxdb_enabled", fallback=False):
        return dict(tags)
    sent = {key: _safe(value) for key, value in tags.items()}
    while True:
        # Each tag adds a comma, the key, an equals sign and the value.
        length = len(f"{_PREFIX}.{name}") + sum(len(key) + len(value) + 2 for key, value in sent.items())
        longest = max(sent, key=lambda key: len(sent[key]), default="")
        if length <= _LONGEST_NAME or len(sent.get(longest, "")) <= _SHORTEST_TAG:
            return sent
        value = sent[longest]
        allowed = max(len(value) - (length - _LONGEST_NAME), _SHORTEST_TAG)
        sent[longest] = f"{value[: allowed - 9]}_{_digest(value)}"


def _safe(value: str) -> str:
    safe = _UNSAFE.sub("_", value)
    # The colon of `s3://` needs no digest. After any other replacement two different values may look equal.
    return safe if safe == value.replace(":", "_") else f"{safe}_{_digest(value)}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:8]
