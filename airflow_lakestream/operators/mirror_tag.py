"""LakestreamTagOperator: tags several mirrors at one position of the database, in the worker."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import BaseSensorOperator, PokeReturnValue

from airflow_lakestream.core.policies import is_given
from airflow_lakestream.operators.arguments import documented, set_arguments, templated
from airflow_lakestream.operators.base import StopsOnKill, airflow_errors, late_imports, put_on_outlets
from airflow_lakestream.operators.rendering import TextRendering

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

log = logging.getLogger(__name__)

# Seconds that a look waits for a common position: with many changes there is a common position each second.
_LOOK_SECONDS = 10


@documented()
class LakestreamTagOperator(TextRendering, StopsOnKill, BaseSensorOperator):
    """Tag several mirrors at one position of the database, so that a query over the tags sees whole transactions.

    Lands each mirror up to exactly this position; landings by other tasks may go on. Waits like a sensor, by default
    without a worker slot (`mode="reschedule"`, each `poke_interval`, until `timeout`).

    Returns, and puts on the event of each outlet asset (an `AssetAlias` becomes the asset of each table), `tag`,
    `position` and, by table, `snapshot_id`.

    .. seealso:: docs/cdc.md

    :param tag: its name, such as `"day_{{ ds_nodash }}"` (templated)
    :param tables: the mirrors, `namespace.table` each, of one connector (templated)
    :param landing: arguments of `KafkaMirrorOperator` that decide rows, such as `rename_columns`, as in the mirrors'
        DAGs: of all mirrors, or of one under its table's name; also as JSON; `{}` for none (templated)
    :param consumer_group: the ledgers' name; None: the only one that each table has (templated)
    :param offsets_topic: `offset.storage.topic` of Kafka Connect, for tables that seldom change (templated)
    :param replace: move the tag if it exists, as after a retry (templated)
    :param kwargs: Airflow's own arguments of a sensor
    """

    ui_color = "#d5e4f2"

    def __init__(
        self,
        *,
        tag: str,
        tables: Sequence[str] | str,
        landing: Mapping[str, Any] | str,
        consumer_group: str | None = None,
        offsets_topic: str | None = None,
        replace: bool | str = False,
        kafka_conn_id: str = "kafka_default",
        iceberg_conn_id: str = "iceberg_default",
        **kwargs: Any,
    ) -> None:
        super().__init__(**{"mode": "reschedule", **kwargs})
        set_arguments(self, LakestreamTagOperator, locals())

    template_fields: Sequence[str] = templated(__init__)

    def poke(self, context: Context) -> PokeReturnValue:
        """Look for a common position for some seconds, and tag; return whether the tags are there, and the result."""
        with late_imports():
            from airflow_lakestream.config.arguments import flag, items, json_object
            from airflow_lakestream.hooks.iceberg import IcebergHook
            from airflow_lakestream.hooks.kafka import KafkaHook
            from airflow_lakestream.hooks.registry import registry_of
            from airflow_lakestream.run.mirror_tag import MirrorTag, NoCommonPosition

        with airflow_errors():
            hook, landing = KafkaHook(self.kafka_conn_id), json_object("landing", self.landing)
            registry = registry_of(landing.get("schema_registry"), hook, landing.get("format"))
            work = MirrorTag(
                name=self.tag,
                tables=items("tables", self.tables) or (),
                kafka=hook.configuration(),
                where=hook.where,
                consumer_group=self.consumer_group if is_given(self.consumer_group) else None,
                landing=landing | ({} if registry is None else {"schema_registry": registry}),
                offsets_topic=self.offsets_topic if is_given(self.offsets_topic) else None,
                replaces=flag("replace", self.replace),
                timeout=_LOOK_SECONDS,
                stop=self._stop,
            )
            try:
                result = work.run(IcebergHook(self.iceberg_conn_id).open_catalog()).to_dict()
            except NoCommonPosition as e:
                log.info("Waiting: %s", e)
                return PokeReturnValue(is_done=False)
        common = {"tag": result["tag"], "position": result["position"]}
        reports = {table: {**common, "table": table, **tagged} for table, tagged in result["tables"].items()}
        put_on_outlets(context, self.outlets, result, reports)
        return PokeReturnValue(is_done=True, xcom_value=result)
