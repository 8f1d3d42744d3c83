"""The job of a landing in this process, from a configuration: `build_job`. Without Airflow."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from pyiceberg.catalog import Catalog

from airflow_lakestream.config.landing import ExtractConfig as ExtractConfig
from airflow_lakestream.config.mirror import MirrorConfig
from airflow_lakestream.core.landing.job import LandingJob
from airflow_lakestream.core.ports import RejectStore, Sink
from airflow_lakestream.decode.metadata import RecordRouter
from airflow_lakestream.decode.rejected import RECORD_SCHEMA
from airflow_lakestream.decode.rows import RowDecoderFactory
from airflow_lakestream.iceberg.fan_out.admission import FanOut
from airflow_lakestream.iceberg.fan_out.sink import FanOutSink
from airflow_lakestream.iceberg.reject_table import rejecting_sink
from airflow_lakestream.kafka.reader import KafkaReader
from airflow_lakestream.kafka.source import KafkaSource
from airflow_lakestream.tables.rejects.sink import RejectingSink

if TYPE_CHECKING:
    from airflow_lakestream.delta.storage import DeltaTableAccess

# Opens tables: an Iceberg catalog, or the store of Delta tables.
Lake: TypeAlias = "Catalog | DeltaTableAccess"


def build_job(
    config: ExtractConfig,
    kafka: Mapping[str, Any],
    catalog: Lake,
    *,
    run_id: str,
    where: str = "the Kafka connection",
    stop: threading.Event | None = None,
    parts: int = 1,
    dry: bool = False,
) -> LandingJob:
    """Return the job of a configuration, without connecting yet.

    :param kafka: librdkafka configuration of the connection.
    :param catalog: opens the tables; for Delta tables, their store.
    :param run_id: the same for every try of one task run, and different for each run.
    :param where: name of the Kafka connection for errors.
    :param stop: event that stops the run between two batches.
    :param parts: the number of processes, each with such a job, that share the memory for rows.
    :param dry: whether nothing is written, not even a note in the consumer group.
    """
    fan_out = config.fan_out
    table = config.table if fan_out is None else fan_out.home
    sink = _sink(config, catalog, fan_out, parts)
    router = None if fan_out is None else _router(fan_out, sink)
    # A mirror's payload runs the statement itself.
    is_mirror = isinstance(config, MirrorConfig)
    sql = config.statement.transform if config.statement is not None and not is_mirror else None
    policies = config.on_error, config.tombstone_policy
    metadata = tuple(config.metadata_columns)
    decoders = RowDecoderFactory(config.payload, metadata, router, *policies, sql, columns=config.decoded)
    return LandingJob(
        run_id=run_id,
        table=table,
        consumer_group=config.consumer_group,
        source=KafkaSource(kafka, config.topic, config.consumer_group, config.start, where, notes_refusals=not dry),
        reader=KafkaReader(
            kafka,
            config.consumer_group,
            poll_timeout=config.poll_timeout,
            where=where,
            parts=decoders.parts,
            bytes_per_second=config.max_bytes_per_second,
        ),
        decoders=decoders,
        sink=sink,
        rejects=cast(RejectStore, sink),
        limits=config.limits,
        on_data_loss=config.on_data_loss,
        allow_group_overlap=config.allow_group_overlap,
        mode=config.coverage,
        replaces=config.replace,
        stop=stop or threading.Event(),
        # A mirror's columns are known only from its events.
        foresee=None if is_mirror else decoders.foreseen,
    )


def _router(fan_out: FanOut, sink: Sink) -> RecordRouter:
    assert isinstance(sink, RejectingSink), "_sink makes a RejectingSink"
    assert isinstance(sink.inner, FanOutSink), "_sink makes a FanOutSink for a fan-out"
    return RecordRouter(fan_out.template, sink.inner.refusals)


def _sink(config: ExtractConfig, opened: Lake, fan_out: FanOut | None, parts: int) -> Sink:
    """Return the sink of a configuration's tables, with their reject tables."""
    lake, group, overlap = config.lake, config.consumer_group, config.allow_group_overlap
    table = config.table
    if fan_out is not None:
        catalog = cast(Catalog, opened)
        home = FanOutSink(catalog, fan_out, group, config.design, allow_group_overlap=overlap)
        return rejecting_sink(home, catalog, fan_out.home, group, RECORD_SCHEMA)
    if isinstance(config, MirrorConfig):
        inner = lake.part("mirror")(opened, table, group, config.mirror, allow_group_overlap=overlap)
    else:
        auditor, common = config.auditor, (opened, table, group, config.table_design)
        inner = lake.part("sink")(*common, allow_group_overlap=overlap, parts=parts)
        if auditor is not None:
            inner.checks = lake.part("checks")(auditor, inner, opened, table, group)
    sink: Sink = lake.part("rejecting")(inner, opened, table, group, RECORD_SCHEMA)
    return sink
