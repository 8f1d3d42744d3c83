"""LakestreamReplayOperator: lands a table's rejected records again, once the cause is fixed."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import BaseOperator

from airflow_lakestream.config import arguments
from airflow_lakestream.config.decoding import DECODING
from airflow_lakestream.core.policies import SchemaEvolution, Tombstones, is_given, landing_tombstones
from airflow_lakestream.operators.arguments import documented, extras_of, set_arguments, takes_decoding, templated
from airflow_lakestream.operators.base import StopsOnKill, airflow_errors, late_imports, need_extras
from airflow_lakestream.operators.sql_template import SqlRendering

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

log = logging.getLogger(__name__)


@documented()
class LakestreamReplayOperator(SqlRendering, StopsOnKill, BaseOperator):
    """Land the rejected records of a table again, from the reject table, without reading Kafka.

    Records that fit now become rows, and leave the reject table; records that are still bad stay, with the new reason
    if a format, a schema, a registry or a statement is given.
    At any time each record is either a row or rejected. Returns `replayed`, `rows`, `still_rejected`, `skipped`,
    `filtered`, `snapshot_ids` and `empty_columns`.

    .. seealso:: docs/operators/replay.md

    :param table: `namespace.table`, or the path or URI of a Delta table (templated)
    :param stage: only records that were found bad at this stage: `"record"`, `"decode"`, `"sql"`, `"route"` or
        `"write"` (templated)
    :param reason: only records whose reason has this text in it (templated)
    :param limit: most records; default: all (templated)
    :param kafka_conn_id: connection of type `kafka`, for its schema registry only (templated)
    """

    template_fields_renderers = {"sql": "sql", "schema": "sql"}
    ui_color = "#e3eed2"

    @takes_decoding
    def __init__(
        self,
        *,
        table: str,
        consumer_group: str = "{{ dag.dag_id }}",
        stage: str | None = None,
        reason: str | None = None,
        limit: int | str | None = None,
        schema_evolution: str = SchemaEvolution.NONE.value,
        tombstones: str = Tombstones.KEEP.value,
        kafka_conn_id: str = "kafka_default",
        iceberg_conn_id: str = "iceberg_default",
        storage_conn_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        set_arguments(
            self, LakestreamReplayOperator, locals(), {"limit": arguments.count, "tombstones": landing_tombstones}
        )

    template_fields: Sequence[str] = templated(__init__)

    def execute(self, context: Context) -> dict[str, Any]:
        """Land the rejected records again, and return the counts; see the class."""
        with late_imports():
            from airflow_lakestream.core.landing.report import counts_to_dict
            from airflow_lakestream.hooks.kafka import KafkaHook
            from airflow_lakestream.hooks.places import open_tables
            from airflow_lakestream.hooks.registry import registry_of
            from airflow_lakestream.lakes import lake_of
            from airflow_lakestream.run.replay import RejectReplay, RejectSelection
            from airflow_lakestream.run.summary import figures

        with airflow_errors():
            need_extras(*extras_of(self))
            decoding = {name: getattr(self, name) for name in DECODING}
            hook, formats = KafkaHook(self.kafka_conn_id), (decoding["format"], decoding["key_format"])
            registry = registry_of(decoding["schema_registry"], hook, *formats)
            work = RejectReplay(
                table=self.table,
                consumer_group=self.consumer_group,
                chosen=RejectSelection(
                    self.stage if is_given(self.stage) else None,
                    self.reason if is_given(self.reason) else None,
                    arguments.count("limit", self.limit),
                ),
                decoding={
                    **decoding,
                    "schema_registry": registry,
                    "schema_evolution": self.schema_evolution,
                    "tombstones": self.tombstones,
                },
                stop=self._stop,
            )
            result = work.run(open_tables(lake_of(self.table), self.iceberg_conn_id, self.storage_conn_id))
        counts = result.counts
        text = f"{counts.read:,} records replayed: {figures(counts_to_dict(counts))}.{result.note}"
        log.info("%s: %s", self.table, text)
        return {"table": self.table, "consumer_group": self.consumer_group, **result.to_dict()}
