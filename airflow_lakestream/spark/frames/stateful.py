"""The batches of a query with a function of a stream: Spark keeps the state, and each batch is a commit."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa

from airflow_lakestream.config.frames import FrameConfig
from airflow_lakestream.core.landing.job import LandingJob
from airflow_lakestream.core.landing.modes import WAYS_OUT, LandedBesideStream, StreamBatchMode, StreamReplaced
from airflow_lakestream.core.landing.plan import Plan
from airflow_lakestream.core.ledger import FunctionRows, StreamBatch, TopicEntry, union
from airflow_lakestream.core.names import RecordPart
from airflow_lakestream.core.policies import StateStore, choose, is_given
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.core.sharing.pieces import SharePiece
from airflow_lakestream.decode.metadata import metadata_schema
from airflow_lakestream.decode.rows import RowDecoderFactory
from airflow_lakestream.exceptions import InvalidArgument, LakestreamError, Terminal
from airflow_lakestream.kafka.source import KafkaSource
from airflow_lakestream.run.topics import RunReport, job_of
from airflow_lakestream.spark.causes import cause_of, query_failed
from airflow_lakestream.spark.checkpoint import QueryCheckpoint
from airflow_lakestream.spark.frames import tasks
from airflow_lakestream.spark.frames.function import (
    FrameFunction,
    TransformFailed,
    TransformRefused,
    columns_of,
    spark_schema,
)
from airflow_lakestream.spark.frames.readers import FrameReaders, temporary_settings
from airflow_lakestream.spark.frames.tasks import DecodeTask, ReportParam, TaskReports, reports_after, sums_of
from airflow_lakestream.spark.kafka_settings import for_executors
from airflow_lakestream.spark.micro_batch import WHERE, MicroBatches, function_of
from airflow_lakestream.stores.folders import FolderStore

if TYPE_CHECKING:
    from pyspark import Accumulator
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

log = logging.getLogger(__name__)


# The files of a state store's versions: whole versions, and changes since the version before.
_VERSION = re.compile(r"(\d+)(?:_[\w-]+)?\.(snapshot|zip|delta|changelog)")
_WHOLE_KINDS = ("snapshot", "zip")
# Folders of a state store that have no versions.
_OTHER_FOLDERS = ("SSTs", "logs")


class CheckpointLost(LakestreamError, Terminal):
    """Error of a table with batches of a query whose checkpoint is gone."""

    def __init__(self, table: str, location: str, last: StreamBatch) -> None:
        super().__init__(
            f"{table} holds {last}, and there is no checkpoint at {location}: the state of that query is gone with it. "
            f"Nothing was landed: windows that were open would be landed wrong, or twice. {WAYS_OUT}"
        )


class RolledBackTooFar(LakestreamError, Terminal):
    """Error of a table rolled back further than the checkpoint can be taken back."""

    def __init__(self, table: str, location: str, last: StreamBatch | None, missing: str) -> None:
        batch = "no batch" if last is None else str(last)
        super().__init__(
            f"{table} was rolled back: it holds {batch}. The checkpoint {location} can't be taken back so far: "
            f"{missing} (Spark keeps the files of the last 100 batches: spark.sql.streaming.minBatchesToRetain). "
            f"Nothing was changed. Roll the table forward to a later batch; or: {WAYS_OUT}"
        )


def align(
    checkpoint: QueryCheckpoint | None, entry: TopicEntry, table: str, consumer_group: str, location: str
) -> bool:
    """Take the checkpoint back to the last batch in the table; return whether the checkpoint was changed.

    The checkpoint is ahead after the table was rolled back; if it is not ahead, it stays.

    :param checkpoint: the query's checkpoint; None before the query's first start.
    :param entry: the topic's part of the ledger entry, with the query's last batch in the table.
    :param location: the checkpoint's location, for errors.

    Raises CheckpointLost, StreamReplaced, RolledBackTooFar, and LandedBesideStream if the ledger has other landings.
    """
    last = entry.streamed
    if last is None and entry.held:
        problem = "its ledger has landings of another kind, whose records the stream's state would lack."
        raise LandedBesideStream(table, consumer_group, problem)
    if checkpoint is None:
        if last is not None:
            raise CheckpointLost(table, location, last)
        return False
    if last is not None and last.query_id != checkpoint.query_id:
        raise StreamReplaced(table, f"and the checkpoint {location} is of query {checkpoint.query_id}.", last)
    # -1: no batch.
    landed = -1 if last is None else last.batch_id
    planned = checkpoint.planned[-1] if checkpoint.planned else -1
    if last is not None and landed > planned:
        raise StreamReplaced(
            table, f"and the checkpoint {location} has no batch after {planned}: it is an old copy.", last
        )
    committed = checkpoint.committed[-1] if checkpoint.committed else -1
    # Plans without commits remain if a driver was killed while it took the checkpoint back.
    if committed <= landed and planned <= landed + 1:
        return False
    _check_files(checkpoint, table, last)
    log.warning(
        "%s was rolled back: it holds %s. The checkpoint is taken back to it, from batch %s.",
        table,
        last or "no batch",
        planned,
    )
    _take_back(checkpoint, landed)
    return True


def _check_files(checkpoint: QueryCheckpoint, table: str, last: StreamBatch | None) -> None:
    """Raise RolledBackTooFar if the checkpoint lacks a file with which the query continues after the table's batch.

    These files are plan and commit of the batch, and the state after the batch; for a table without a batch, the plan
    of the first batch.

    :param last: the last batch in the table; None for a table without a batch.
    """
    missing = ""
    if last is None:
        if 0 not in checkpoint.planned or checkpoint.start is None:
            missing = "its first batch"
    elif last.batch_id not in checkpoint.planned or last.batch_id not in checkpoint.committed:
        missing = f"batch {last.batch_id}"
    else:
        # The state after batch n has version n + 1.
        for folder, versions in _state_stores(checkpoint.store):
            if not _has_version(versions, last.batch_id + 1):
                missing = f"the state {folder}"
                break
    if missing:
        raise RolledBackTooFar(table, checkpoint.location, last, f"{missing} is not there any more")


def _take_back(checkpoint: QueryCheckpoint, batch: int) -> None:
    """Delete state, commits and plans after a batch.

    State is deleted, too: Spark would take an old version of the state for a new version of the same number. State is
    deleted first, while plans and commits show that the checkpoint is ahead: if the driver is killed meanwhile, the
    next start repeats the deletion. A plan without a commit does no harm: Spark runs its batch again.

    :param batch: the batch's number; -1 for a table without a batch.
    """
    store = checkpoint.store
    for folder, versions in _state_stores(store):
        for name, version, _ in versions:
            if version > batch + 1:
                _remove(store, folder, name)
    for folder, numbers in (("commits", checkpoint.committed), ("offsets", checkpoint.planned)):
        for number in reversed(numbers):
            if number > batch:
                _remove(store, folder, str(number))


def _remove(store: FolderStore, folder: str, name: str) -> None:
    # Hadoop's local file system keeps a checksum next to each file; a leftover checksum would stay for ever.
    store.remove(f"{folder}/.{name}.crc")
    store.remove(f"{folder}/{name}")


# A file's name, version and kind.
_Versions = list[tuple[str, int, str]]


def _state_stores(store: FolderStore) -> Iterator[tuple[str, _Versions]]:
    """Yield each state store's folder, state/<operator>/<partition>[/<store>], and the versions in the folder."""
    for operator in filter(str.isdigit, store.names("state")):
        for partition in filter(str.isdigit, store.names(f"state/{operator}")):
            folder = f"state/{operator}/{partition}"
            names = store.names(folder)
            yield folder, _versions(names)
            for name in names:
                # A join has several stores for each partition.
                if "." not in name and name not in _OTHER_FOLDERS:
                    yield f"{folder}/{name}", _versions(store.names(f"{folder}/{name}"))


def _versions(names: Iterable[str]) -> _Versions:
    matches = ((name, _VERSION.fullmatch(name)) for name in names)
    return [(name, int(match[1]), match[2]) for name, match in matches if match]


def _has_version(versions: _Versions, version: int) -> bool:
    """Return whether a version of a state store can be loaded: from the last whole version and all changes since.

    Without a whole version, all changes since the start are needed. A store without versions has no state to load.
    """
    if not versions:
        return True
    last_full = max((number for _, number, kind in versions if kind in _WHOLE_KINDS and number <= version), default=0)
    changes = {number for _, number, kind in versions if kind not in _WHOLE_KINDS}
    return all(number in changes for number in range(last_full + 1, version + 1))


@dataclass
class StreamReaders(FrameReaders):
    """`FrameReaders` of a streaming query with a function.

    :param reports: the executors' reports about the records that they decode.
    """

    # A row that Spark made from its state is not a record's row, even if the row has a record's position.
    makes_records: ClassVar[bool] = False
    reports: Accumulator[TaskReports] = field(kw_only=True)
    # The current batch, as Spark has planned the batch, and whether Spark has run the batch.
    _batch: DataFrame | None = None
    _has_run: bool = False

    def begin(self, batch: DataFrame) -> None:
        """Set the next batch."""
        self._batch, self._has_run = batch, False

    def finish(self, ranges: RangeSet) -> None:
        """End a batch: run the batch if `read` has not run it, and drop the reports about its records.

        If the table has the batch already, a landing does not call `read`. Spark runs the batch nevertheless, for its
        state and watermark, and the rows are dropped. Raises the errors of Spark and of a decoder, so that a state that
        lacks records is not kept.
        """
        if not self._has_run and self._batch is not None:
            log.info("The table has this batch already: it is run for its state, and its rows are dropped")
            self._batch.write.format("noop").mode("overwrite").save()
            # For the error of a decoder.
            sums_of(self.reports.value, ranges)
        self._batch, self.reports.value = None, reports_after(self.reports.value, ranges)

    def read(self, job: LandingJob, plan: Plan, done: RangeSet, most: int | None) -> Sequence[SharePiece]:
        """Run the batch, and write the rows; return a single piece with the plan's offsets.

        `done` and `most` are unused, since Spark determines the batch. Raises TransformFailed, and the errors of a
        decoder.
        """
        assert self._batch is not None, "a batch has begun"
        metadata, keeps_positions = self._set_columns(job, self._batch, plan.ranges)
        self._has_run = True
        try:
            written = self._write(job, plan, self._batch, metadata, plan.ranges, keeps_positions=keeps_positions)
        except TransformFailed:
            # If a decoder failed, the function may have failed for lack of rows: the decoder's error explains more.
            sums_of(self.reports.value, plan.ranges)
            raise
        sums, rows = sums_of(self.reports.value, plan.ranges), sum(task_result.rows for task_result in written)
        for rejected in sums.rejected:
            assert job.rejects is not None, "every table has a reject table"
            job.rejects.reject(rejected)
        log.info("%s made %s rows in %s", self.function.name, rows, plan.streamed)
        made = FunctionRows(self.function.name, rows)
        return [SharePiece(plan.state.identity, plan.ranges, sums.counts, plan.epochs, {}, sums.bad, made, sums.use)]


# Spark's setting of the class that keeps a query's state.
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_JAVA_PACKAGE = "org.apache.spark.sql.execution.streaming.state"
_PROVIDERS = {
    StateStore.MEMORY: f"{_JAVA_PACKAGE}.HDFSBackedStateStoreProvider",
    StateStore.ROCKSDB: f"{_JAVA_PACKAGE}.RocksDBStateStoreProvider",
}


@dataclass
class StatefulBatches(MicroBatches):
    """`MicroBatches` of a query whose batches only Spark can repeat, because Spark has the state."""

    @cached_property
    def readers(self) -> StreamReaders:
        """The remote readers of a batch."""
        common = self.spark, self.extract, for_executors(self.config.kafka), WHERE
        return StreamReaders(*common, function=self._function, reports=self._reports)

    @cached_property
    def source_options(self) -> Mapping[str, str]:
        """The options of Spark's source; since the records go into the state, no record may be missing."""
        has_headers = RecordPart.HEADERS in self._decoders.parts
        named = {"groupIdPrefix": self.extract.consumer_group, "includeHeaders": str(has_headers)}
        return {**self.options, **named, "failOnDataLoss": "true"}

    @cached_property
    def _frames(self) -> FrameConfig:
        assert isinstance(self.extract, FrameConfig), "mirrors have no function"
        return self.extract

    @cached_property
    def _function(self) -> FrameFunction:
        function = function_of(self.extract)
        assert function is not None, "a query has a state because it has a function"
        return function

    @cached_property
    def _reports(self) -> Accumulator[TaskReports]:
        return self.spark.sparkContext.accumulator({}, ReportParam())  # type: ignore[arg-type]  # it has both methods

    @cached_property
    def _decoders(self) -> RowDecoderFactory:
        topic = self.extract.topic
        job = job_of(self.extract, topic, [topic], self.config.kafka, self.catalog, "start", WHERE)
        assert isinstance(job.decoders, RowDecoderFactory), "build_job makes such decoders"
        return job.decoders

    def catch_up(self, checkpoint: QueryCheckpoint | None) -> bool:
        """Take the checkpoint back to the table's batch, see `align`; return whether the checkpoint was changed."""
        config = self.extract
        location = str(self.config.checkpoint_location)
        self._check_state_store(checkpoint)
        state = KafkaSource(self.config.kafka, config.topic, config.consumer_group, config.start, WHERE).look()
        _, entry = self._job_and_entry(config.topic, [config.topic], state)
        return align(checkpoint, entry, config.table, config.consumer_group, location)

    def rows(self, records: DataFrame) -> DataFrame:
        """Return the function's result for the stream of decoded rows. Raises TransformRefused.

        Executors decode the records by our own decoders, and report counts and rejects.
        """
        decoded = self._frames.decoded
        assert decoded is not None, "there is a function"
        columns = pa.schema([*decoded, *metadata_schema(self.extract.metadata_columns)])
        part_columns = [tasks.PART_COLUMNS[part][0] for part in sorted(self._decoders.parts)]
        task = DecodeTask(self._decoders, self.extract.topic, columns, self._reports)
        source = records.select(*tasks.COLUMNS, *part_columns)
        stream = source.mapInArrow(task.__call__, spark_schema(columns))
        result = self._function.of(stream, self.spark, self.extract.table, RangeSet())
        try:
            columns_of(result, self._function.argument)
        except InvalidArgument as e:
            raise self._refused(f"{e}") from e
        return result

    def start(self, writer: DataStreamWriter) -> StreamingQuery:
        """Start the query. Raises TransformRefused for a result that Spark can't land by appending."""
        from pyspark.errors import AnalysisException

        # The query takes a copy of the session's settings.
        with temporary_settings(self.spark, {} if self._provider is None else {PROVIDER: self._provider}):
            try:
                return super().start(writer.outputMode("append"))
            except AnalysisException as e:
                raise self._refused(cause_of(e)) from e

    def land_batch(self, checkpoint: QueryCheckpoint, batch_id: int, frame: DataFrame) -> RunReport:
        """Run a batch, and land the result, unless the table has the batch already. Raises the errors of a landing.

        :param checkpoint: the query's checkpoint, with the offsets of the batch.
        :param frame: the batch of the function's rows, which this method runs once.
        """
        starts, ends = checkpoint.starts(batch_id), checkpoint.ends(batch_id)
        ranges = union(RangeSet.of(*key, starts.get(key, 0), end) for key, end in ends.items())
        # Only the first batch sets the origin of each partition in the ledger.
        origins = {partition: start for (_, partition), start in starts.items()} if batch_id == 0 else {}
        batch = StreamBatch(checkpoint.query_id, batch_id, checkpoint.watermark(batch_id))
        mode = StreamBatchMode(batch, origins, ranges, self.extract.consumer_group)
        self.readers.begin(frame)
        report = self.land(f"{checkpoint.query_id}/{batch_id}", mode=mode)
        try:
            self.readers.finish(ranges)
        except LakestreamError:
            raise
        except Exception as e:  # errors of Spark and Py4J have no common base; each is raised again by name
            raise query_failed(str(self.config.checkpoint_location), e) from e
        return report

    def _refused(self, cause: str) -> TransformRefused:
        return TransformRefused(self._function.name, self.extract.table, RangeSet(), cause)

    @property
    def _provider(self) -> str | None:
        """Spark's class for the configured state store; None for the session's."""
        state_store = self._frames.state_store
        return _PROVIDERS[choose(StateStore, "state_store", state_store)] if is_given(state_store) else None

    def _check_state_store(self, checkpoint: QueryCheckpoint | None) -> None:
        """Raise InvalidArgument for another state store than the checkpoint's: Spark would ignore the setting."""
        if checkpoint is None or not checkpoint.planned or self._provider is None:
            return
        first_provider = checkpoint.setting(checkpoint.planned[-1], PROVIDER)
        if first_provider is not None and first_provider != self._provider:
            problem = f"is {self._frames.state_store!r}, and the checkpoint's state is kept by {first_provider}."
            raise InvalidArgument("state_store", problem, "A query keeps the one that it began with.")
