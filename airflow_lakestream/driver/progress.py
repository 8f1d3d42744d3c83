"""A driver's reports of batches, in `progress.json` of the driver's folder."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from airflow_lakestream.core.ledger import Counts
from airflow_lakestream.core.ranges import OffsetRange, RangeSet
from airflow_lakestream.driver.driver_folder import DriverFolder

_FILE_NAME = "progress.json"
# Number of last batches that are kept; the sums cover all batches.
KEPT = 50
_SUMS = ("rows_in", "rows_out", "rejected", "skipped", "filtered", "bad")
# Topic, partition, from, until.
LandedRange = tuple[str, int, int, int]


@dataclass(frozen=True)
class BatchProgress:
    """A finished micro-batch.

    :param input_rate: records per second that arrived.
    :param processing_rate: records per second that were processed.
    :param duration: in seconds.
    :param lag: number of offsets that are not landed yet.
    :param watermark: time up to which the topic is landed, in milliseconds since 1970.
    :param at: end of the batch, in seconds since 1970.
    :param tables: number of rows by table.
    :param what: description of a step that lands nothing.
    """

    batch_id: int
    rows_in: int
    rows_out: int
    rejected: int = 0
    input_rate: float = 0.0
    processing_rate: float = 0.0
    duration: float = 0.0
    ranges: tuple[LandedRange, ...] = ()
    lag: int | None = None
    watermark: int | None = None
    snapshot_ids: tuple[str, ...] = ()
    at: float = 0.0
    skipped: int = 0
    filtered: int = 0
    bad: int = 0
    tables: Mapping[str, int] = field(default_factory=dict)
    what: str = ""

    @classmethod
    def of(
        cls, batch_id: int, counts: Counts, rows: int, landed: Iterable[OffsetRange], duration: float, **fields: Any
    ) -> BatchProgress:
        """Return a batch that has landed offsets.

        :param fields: values of other fields.
        """
        return cls(
            *(batch_id, counts.read, rows),
            skipped=counts.skipped,
            filtered=counts.filtered,
            processing_rate=counts.read / max(duration, 1e-3),
            duration=duration,
            ranges=tuple((r.topic, r.partition, r.from_offset, r.until_offset) for r in landed),
            **fields,
        )

    @classmethod
    def parse(cls, value: Mapping[str, Any]) -> BatchProgress:
        """Read a batch of a progress file; unknown keys are ignored. Raises TypeError or ValueError."""
        fields = {name: value[name] for name in cls.__dataclass_fields__ if name in value}
        fields["ranges"] = _ranges(fields.get("ranges", ()))
        fields["snapshot_ids"] = tuple(map(str, fields.get("snapshot_ids", ())))
        return cls(**fields)

    def emptied(self) -> BatchProgress:
        """Return the batch without landed rows and ranges."""
        names = {"duration", "lag", "watermark", "snapshot_ids", "at", "what"}
        return BatchProgress(self.batch_id, 0, 0, **{name: getattr(self, name) for name in names})

    def __str__(self) -> str:
        if self.what:
            return f"{self.what}, {self.duration:.1f} s"
        lag = "" if self.lag is None else f", {self.lag:,} behind"
        rejected = f", {self.rejected:,} rejected" if self.rejected else ""
        return (
            f"batch {self.batch_id}: {self.rows_in:,} records in, {self.rows_out:,} rows out{rejected}, "
            f"{self.duration:.1f} s, {self.processing_rate:,.0f} records/s{lag}"
        )


@dataclass(frozen=True)
class DriverProgress:
    """The progress of a checkpoint; the sums cover all its drivers.

    :param moves: number of signs of life: a finished batch, a step within a batch, a look without new records.
    :param moved_at: time of the last sign of life, in seconds since 1970.
    :param doing: description of the last sign of life.
    :param last: the last batches, at most `KEPT`.
    :param tables: number of rows by table.
    :param landed: the merged ranges of all batches.
    """

    batches: int = 0
    rows_in: int = 0
    rows_out: int = 0
    rejected: int = 0
    moves: int = 0
    moved_at: float = 0.0
    doing: str = ""
    last: tuple[BatchProgress, ...] = ()
    skipped: int = 0
    filtered: int = 0
    bad: int = 0
    tables: Mapping[str, int] = field(default_factory=dict)
    landed: tuple[LandedRange, ...] = ()

    @property
    def newest(self) -> BatchProgress | None:
        """The last finished batch."""
        return self.last[-1] if self.last else None

    @classmethod
    def of_sums(cls, sums: Mapping[str, Any]) -> DriverProgress:
        """Return a progress with these sums."""
        known = {name: sums[name] for name in ("batches", *_SUMS, "tables") if name in sums}
        return cls(**known, landed=_ranges(sums.get("landed", ())))

    def sums(self) -> dict[str, Any]:
        """Return the sums as JSON-ready values."""
        counts = {name: getattr(self, name) for name in ("batches", *_SUMS)}
        return {**counts, "tables": dict(self.tables), "landed": [list(landed) for landed in self.landed]}

    def since(self, before: Mapping[str, Any]) -> dict[str, Any]:
        """Return the difference from earlier sums; no count falls below 0.

        Offsets that landed before, and again since, are in `landed` only if their batch is in `last`.

        :param before: the earlier sums, as returned by `sums`.
        """
        now = self.sums()
        counts = {name: max(0, now[name] - before.get(name, 0)) for name in ("batches", *_SUMS)}
        tables = Counter(self.tables) - Counter(before.get("tables", {}))
        landed = _range_set(self.landed) - _range_set(_ranges(before.get("landed", ())))
        for batch in self.last[-counts["batches"] :] if counts["batches"] else ():
            landed |= _range_set(batch.ranges)
        return {**counts, "tables": dict(tables), "landed": [list(part) for part in _listed(landed)]}

    def plus(self, batch: BatchProgress) -> DriverProgress:
        """Return the sums with a further batch; `last` keeps the newest batches only."""
        return replace(
            self,
            batches=self.batches + 1,
            **{name: getattr(self, name) + getattr(batch, name) for name in _SUMS},
            tables=dict(Counter(self.tables) + Counter(batch.tables)),
            landed=tuple(_listed(_range_set((*self.landed, *batch.ranges)))),
            last=(*self.last, batch)[-KEPT:],
        )


class ProgressLog:
    """The driver's log of progress, which continues the progress of the checkpoint's earlier drivers. Thread-safe."""

    def __init__(self, location: str, properties: Mapping[str, str] | None = None) -> None:
        self._folder = DriverFolder(location, properties)
        self._progress = _read(self._folder)
        self._lock = threading.Lock()

    def report(self, batch: BatchProgress) -> None:
        """Add a finished batch. An `at` of 0 becomes now."""
        batch = batch if batch.at else replace(batch, at=time.time())
        with self._lock:
            self._write(self._progress.plus(batch), f"batch {batch.batch_id} done")

    def report_once(self, batch: BatchProgress) -> None:
        """Add a batch that may be reported already; such a batch counts as a batch without landed rows.

        A driver killed after its report may repeat the batch: the next driver then finds the same snapshots.
        """
        with self._lock:
            reported = {(last.batch_id, last.snapshot_ids) for last in self._progress.last if last.snapshot_ids}
        self.report(batch.emptied() if (batch.batch_id, batch.snapshot_ids) in reported else batch)

    def alive(self, doing: str = "waiting for records") -> None:
        """Report a sign of life without a finished batch: no new records, or a step of a long batch.

        Call it for each look without records, or with each step; never from a timer, which also runs in a stuck driver.
        """
        with self._lock:
            self._write(self._progress, doing)

    def _write(self, progress: DriverProgress, doing: str) -> None:
        self._progress = replace(progress, moves=progress.moves + 1, moved_at=time.time(), doing=doing)
        self._folder.write(_FILE_NAME, asdict(self._progress))


def read_progress(location: str, properties: Mapping[str, str] | None = None) -> DriverProgress:
    """Return the progress of a checkpoint; empty before a driver's first report."""
    return _read(DriverFolder(location, properties))


def _read(folder: DriverFolder) -> DriverProgress:
    try:
        return _parsed(folder.read(_FILE_NAME) or {})
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError):
        # A damaged file: the counts are only for people, so they begin at 0 again.
        return DriverProgress()


def _parsed(content: Mapping[str, Any]) -> DriverProgress:
    """Return the progress in a file's content. Raises TypeError, ValueError, KeyError for damaged content."""
    known = {name: content[name] for name in DriverProgress.__dataclass_fields__ if name in content}
    known["landed"] = _ranges(known.get("landed", ()))
    known["last"] = tuple(BatchProgress.parse(batch) for batch in known.get("last", ()))
    empty = DriverProgress()
    for name, value in known.items():
        default = getattr(empty, name)
        if not isinstance(value, int | float if isinstance(default, int | float) else type(default)):
            raise TypeError(f"{name}: {value!r}")
    progress = DriverProgress(**known)
    # Values that can't be added count as damaged, too.
    progress.plus(BatchProgress(0, 0, 0))
    return progress


def _ranges(items: Iterable[Any]) -> tuple[LandedRange, ...]:
    return tuple((str(topic), int(partition), int(start), int(end)) for topic, partition, start, end in items)


def _range_set(ranges: Iterable[LandedRange]) -> RangeSet:
    return RangeSet(OffsetRange(topic, partition, start, end) for topic, partition, start, end in ranges if start < end)


def _listed(ranges: RangeSet) -> Iterator[LandedRange]:
    return ((r.topic, r.partition, r.from_offset, r.until_offset) for r in ranges)
