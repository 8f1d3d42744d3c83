"""AssetPartitionsOperator: emits complete hours or days of a table, as partitions of an asset."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow.providers.common.compat.sdk import AirflowSkipException, Asset, AssetAlias, BaseOperator
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_3_PLUS

from airflow_lakestream.config import arguments
from airflow_lakestream.core.names import state_key
from airflow_lakestream.core.policies import is_template
from airflow_lakestream.exceptions import AirflowTooOld, InvalidArgument, UnknownValue
from airflow_lakestream.lakes import LakeCapability, lake_of
from airflow_lakestream.operators.arguments import documented, set_arguments, templated
from airflow_lakestream.operators.base import airflow_errors, late_imports, table_asset
from airflow_lakestream.operators.rendering import TextRendering

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_lakestream.watching.partition_emission import EmittedPartitions

log = logging.getLogger(__name__)

# The key of the emitted partitions in an event's `extra`.
_EXTRA = "lakestream_partitions"
# Airflow does not return an asset's events while a run that they started is queued. So the emitted partitions are in
# the event of a second asset, which starts no run and is stored in the same transaction. This and the next text are in
# Airflow's database, and must stay.
_STATE_ASSET = "lakestream://told/"
# The key of the emitted partitions in the stored state.
_EMITTED = "told"
# Greatest number of events that are searched for the newest emission if the asset's state is lost.
_MOST_EVENTS = 1_000
# The values of `PartitionLength`, which a DAG file must not import.
_EVERY = ("hour", "day")


@documented()
class AssetPartitionsOperator(TextRendering, BaseOperator):
    """Emit each complete hour, or day, of a table: as a partition of an asset, on Airflow 3.3 and newer.

    An hour is complete when the ledger has all offsets from before its end, and each partition of the topics has a
    later record. Rows that land late in an emitted hour make it emitted again, marked. All emitted partitions are in an
    event of a second asset, which Airflow stores together with the partitions' event and the task's success: so no
    partition is lost or emitted twice if the task is killed, tried again or cleared. Without a partition to emit, the
    task is skipped.

    Returns `partitions`, the emitted keys, and `reopened`: the number of late rows by key, for keys emitted again.

    .. seealso:: docs/partitions.md

    :param table: `namespace.table`, an Iceberg table with a ledger (templated)
    :param since: a time with its zone: the first emitted partition is the first that begins then, or later
        (templated)
    :param every: `"hour"`, or `"day"` of UTC
    :param consumer_group: the ledger's name; if another DAG lands, that DAG's group (templated)
    :param event_time_column: the column of times that decides about the partition of a late row: of type timestamp, or
        date with `every="day"` (templated)
    :param idle_after: a Kafka partition without a later record counts as done once all of it is landed and this long
        has passed since the hour's end; a partition with an open transaction always waits (templated)
    :param outlets: the asset, exactly one; default: the table's asset, named as by the landing operators
    """

    ui_color = "#dfe8f7"

    def __init__(
        self,
        *,
        table: str,
        since: str | datetime,
        every: str = "hour",
        consumer_group: str = "{{ dag.dag_id }}",
        event_time_column: str = "_kafka_timestamp",
        idle_after: float | str | timedelta | None = None,
        kafka_conn_id: str = "kafka_default",
        iceberg_conn_id: str = "iceberg_default",
        **kwargs: Any,
    ) -> None:
        if not AIRFLOW_V_3_3_PLUS:
            raise AirflowTooOld(
                "AssetPartitionsOperator needs Airflow 3.3 or newer: before that, a task can't emit partitions "
                "of an asset. Wait with IcebergSnapshotFreshnessSensor and complete_through instead."
            )
        if every not in _EVERY:
            raise UnknownValue("every", every, _EVERY)
        if not is_template(table):
            lake_of(table).require(LakeCapability.PARTITIONS, "table", table)
        asset = _asset(kwargs.get("outlets"), table)
        state_asset = Asset(name=f"{_STATE_ASSET}{asset.name}", uri=f"{_STATE_ASSET}{quote(asset.name, safe='')}")
        kwargs["outlets"] = [asset, state_asset]
        # A task can read only the events of its inlets: the earlier emissions.
        kwargs["inlets"] = [*_listed(kwargs.get("inlets")), state_asset]
        if kwargs.setdefault("max_active_tis_per_dag", 1) != 1:
            raise InvalidArgument(
                "max_active_tis_per_dag",
                "is not 1: two runs at the same time could both emit an hour.",
                "Leave it out.",
            )
        super().__init__(**kwargs)
        # Airflow renders texts only.
        since = since.isoformat() if isinstance(since, datetime) else since
        set_arguments(self, AssetPartitionsOperator, locals(), {"since": arguments.milliseconds})

    template_fields: Sequence[str] = templated(__init__, "every")

    def execute(self, context: Context) -> dict[str, Any]:
        """Look, put the partitions to emit on the assets' events, and return the report.

        Raises AirflowSkipException without a partition to emit.
        """
        with late_imports():
            from airflow_lakestream.hooks.places import AirflowPlaces
            from airflow_lakestream.watching.asking import run_now
            from airflow_lakestream.watching.partitions import PartitionsLook

        with airflow_errors():
            look = PartitionsLook(**{name: getattr(self, name) for name in (*self.template_fields, "every")})
            before = self._emitted(context, look.name)
            answer = run_now(look.look(AirflowPlaces(), before))
        if answer.emission is None:
            raise AirflowSkipException(f"No {self.every} of {self.table} is to be emitted: {answer.text}")
        emission = answer.emission
        keys = [look.every.key(start) for start in emission.starts]
        reopened = {look.every.key(start): rows for start, rows in emission.reopened.items()}
        asset, state_asset = self.outlets
        context["outlet_events"][state_asset].extra = {_EXTRA: {"name": look.name, **emission.after.to_json()}}
        event = context["outlet_events"][asset]
        event.extra = {
            "table": self.table,
            "consumer_group": self.consumer_group,
            "every": self.every,
            "reopened": reopened,
        }
        event.add_partitions(keys)
        log.info("Emitted %s %ss of %s, from %s to %s.", len(keys), self.every, self.table, keys[0], keys[-1])
        for key, rows in reopened.items():
            log.info("%s is emitted again: %s rows landed since it was emitted.", key, rows)
        return {"partitions": keys, "reopened": reopened}

    def _emitted(self, context: Context, name: str) -> EmittedPartitions:
        """Return the partitions emitted up to now, by the newest emission under a name.

        A run keeps the newest emission in the second asset's state, so that the next run reads only later events.
        """
        from airflow_lakestream.watching.partition_emission import EmittedPartitions

        _, state_asset = self.outlets
        store, key = context["asset_state_store"][state_asset], state_key(f"{_EXTRA}/{name}")
        stored: Any = store.get(key)
        events = context["inlet_events"][state_asset].ascending(False)
        events = events.after(stored["at"]) if stored is not None else events.limit(_MOST_EVENTS)
        newest = max(_emissions(events, name), key=lambda emission: emission[_EMITTED]["number"], default=None)
        if newest is not None and (stored is None or newest[_EMITTED]["number"] > stored[_EMITTED]["number"]):
            store.set(key, newest)
            stored = newest
        return EmittedPartitions() if stored is None else EmittedPartitions.parse(stored[_EMITTED])


def _asset(outlets: Any, table: str) -> Asset:
    """Return the only asset in `outlets`, or without outlets the table's asset.

    Raises InvalidArgument for more assets, for an alias, and for a templated table without outlets.
    """
    remedy = "Give outlets=[Asset(...)]."
    assets = _listed(outlets)
    if not assets:
        if is_template(table):
            raise InvalidArgument("outlets", "is missing, and the table is a template.", remedy)
        return table_asset(table)
    if len(assets) != 1 or isinstance(assets[0], AssetAlias) or not isinstance(assets[0], Asset):
        raise InvalidArgument("outlets", "is not one asset; Airflow knows no partitions of an alias.", remedy)
    return assets[0]


def _listed(value: Any) -> list[Any]:
    """Return a value of `inlets` or `outlets` as a list."""
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple | set) else [value]


def _emissions(events: Iterable[Any], name: str) -> Iterable[dict[str, Any]]:
    """Yield the emissions under a name, each with the time of its event.

    :param name: `PartitionsLook.name`: an asset may have events of several tables, groups and lengths.
    """
    for event in events:
        extra = (event.extra or {}).get(_EXTRA)
        if isinstance(extra, Mapping) and extra.get("name") == name:
            yield {"at": event.timestamp.isoformat(), _EMITTED: dict(extra)}
