"""The extract path put together: the job that a configuration describes.

No Airflow in here: the operator, the command line and the tests all come through `build_job`.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from pyiceberg.catalog import Catalog

from airflow_lakestream.core.landing import Job
from airflow_lakestream.core.policies import OnDataLoss, OnError, Tombstones, choose
from airflow_lakestream.core.ports import Sink
from airflow_lakestream.decode.rejected import RECORD_SCHEMA
from airflow_lakestream.decode.routing import Router
from airflow_lakestream.decode.rows import RowDecoders
from airflow_lakestream.extract_config import ExtractConfig as ExtractConfig
from airflow_lakestream.iceberg.fan_out import FanOut, FanOutSink
from airflow_lakestream.iceberg.rejects import RejectingSink
from airflow_lakestream.iceberg.sink import IcebergSink
from airflow_lakestream.kafka.reader import KafkaReader
from airflow_lakestream.kafka.source import KafkaSource


def build_job(
    config: ExtractConfig,
    kafka: Mapping[str, Any],
    catalog: Catalog,
    *,
    run_id: str,
    where: str = "the Kafka connection",
    stop: threading.Event | None = None,
) -> Job:
    """Put the parts together. Nothing is connected yet.

    :param kafka: librdkafka configuration of the connection.
    :param run_id: the same for every try of one task run, another for another run.
    :param where: what to call the Kafka connection in errors.
    :param stop: set it to stop the run between two batches.
    """
    fan_out = config.fan_out
    on_error = choose(OnError, "on_error", config.on_error)
    table = config.table if fan_out is None else fan_out.home
    sink = RejectingSink(_sink(config, catalog, fan_out), catalog, table, config.consumer_group, RECORD_SCHEMA)
    router = Router(fan_out.template) if fan_out is not None else None
    sql = config.statement.transform if config.statement is not None else None
    tombstones = choose(Tombstones, "tombstones", config.tombstones)
    decoders = RowDecoders(config.payload, tuple(config.metadata_columns), router, on_error, tombstones, sql)
    return Job(
        run_id=run_id,
        table=table,
        consumer_group=config.consumer_group,
        source=KafkaSource(kafka, config.topic, config.consumer_group, config.start, where),
        reader=KafkaReader(
            kafka,
            config.consumer_group,
            poll_timeout=config.poll_seconds,
            where=where,
            with_keys=decoders.needs_keys,
            with_headers=decoders.needs_headers,
        ),
        decoders=decoders,
        sink=sink,
        rejects=sink,
        limits=config.limits,
        on_data_loss=choose(OnDataLoss, "on_data_loss", config.on_data_loss),
        allow_group_overlap=config.allow_group_overlap,
        mode=config.coverage,
        replaces=config.replaces,
        stop=stop or threading.Event(),
    )


def _sink(config: ExtractConfig, catalog: Catalog, fan_out: FanOut | None) -> Sink:
    overlap = config.allow_group_overlap
    if fan_out is not None:
        return FanOutSink(catalog, fan_out, config.consumer_group, config.design, allow_group_overlap=overlap)
    return IcebergSink(catalog, config.table, config.consumer_group, config.design, allow_group_overlap=overlap)
