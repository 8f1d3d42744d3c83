"""LakestreamAuditOperator: proves on a schedule that a table has each record of the topics once, and can repair it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowFailException, BaseOperator

from airflow_lakestream.config.decoding import DECODING
from airflow_lakestream.core.policies import OnDataLoss, TableFormat, Tombstones, choose, is_given, landing_tombstones
from airflow_lakestream.exceptions import InvalidArgument, LakestreamError, Transient
from airflow_lakestream.lakes import lake_of
from airflow_lakestream.operators.arguments import documented, extras_of, set_arguments, takes_decoding, templated
from airflow_lakestream.operators.base import StopsOnKill, airflow_errors, late_imports, need_extras
from airflow_lakestream.operators.sql_template import SqlRendering

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_lakestream.audit.result import AuditResult
    from airflow_lakestream.audit.run import Audit
    from airflow_lakestream.audit.source_database import DatabaseAddress
    from airflow_lakestream.hooks.kafka import KafkaHook
    from airflow_lakestream.lakes import LakeFormat

log = logging.getLogger(__name__)

# Greatest number of ranges in XCom; `lakestream audit --json` prints all ranges.
MOST_RANGES = 1000


class CouldNotLook(LakestreamError, Transient):
    """Error of an audit that could not read a part of the facts."""


@documented()
class LakestreamAuditOperator(SqlRendering, StopsOnKill, BaseOperator):
    """Compare a table with the ledger and with the records in Kafka; only `repair` changes the table.

    A mirror, or a table by key, is compared row by row with its topic folded by key, by `full` alone.

    Returns the result: `verdict`, and by partition `missing`, `doubled`, `both`, `rejected_twice`, `unexpected`,
    `lost`, `forgotten`, `not_verifiable` as lists of [from, until]; with `repair` also `repaired`, and all other
    fields are from after the repair. Damage fails the task without retries; the result is in XCom all the same. If a
    part could not be looked at, an error is raised that Airflow retries.

    .. seealso:: docs/operators/audit.md

    :param table: `namespace.table`, or the path or URI of a Delta table, repaired only if it is a table by key
        (templated)
    :param table_format: `"iceberg"` or `"delta"`; default: by the table's name (templated)
    :param topic: a topic of the ledger; None: all topics (templated)
    :param full: read every row's position and the topic, instead of file statistics alone (templated)
    :param repair: land missing rows and make doubled rows one, of a table by key all wrong rows, in one snapshot, then
        look again; always `full` (templated)
    :param format: format of values, which `repair` and a table by key decode, by all arguments of decoding (templated)
    :param schema: for `repair` only: the columns that a statement with `sql_input="decoded"` reads, or the columns of
        CSV's fields (templated)
    :param tombstones: for `repair`, as the extract operator's, or for a table by key, as the mirror operator's
        (templated)
    :param landing: also as JSON, for the home of a fan-out: `table`, the template of its tables; for a table by key:
        further arguments of `KafkaMirrorOperator` that decide its rows: `key`, `on_error`, `max_rejected`,
        `out_of_range`, `source_tables`, `delete_when`, `within`, `merge`; and those of decoding; `repair` of a table by
        key needs it, `{}` for none (templated)
    :param against_database: connection of type `postgres` or `mysql`: compare a mirror with the table of the
        database, in place of `full` and `repair` (templated)
    :param on_data_loss: for `repair` only: `"fail"` if rows are missing that Kafka no longer has, or `"record"` to
        write them into the ledger as lost (templated)
    :param kafka_conn_id: connection of type `kafka`, for `full` and `repair` only (templated)
    """

    template_fields_renderers = {"sql": "sql", "schema": "sql"}
    ui_color = "#e3eed2"

    @takes_decoding
    def __init__(
        self,
        *,
        table: str,
        table_format: str | None = None,
        consumer_group: str = "{{ dag.dag_id }}",
        topic: str | None = None,
        full: bool | str = False,
        repair: bool | str = False,
        tombstones: str = Tombstones.KEEP,
        on_data_loss: str = OnDataLoss.FAIL,
        landing: Mapping[str, Any] | str | None = None,
        against_database: str | None = None,
        kafka_conn_id: str = "kafka_default",
        iceberg_conn_id: str = "iceberg_default",
        storage_conn_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        set_arguments(self, LakestreamAuditOperator, locals(), {"tombstones": landing_tombstones})

    template_fields: Sequence[str] = templated(__init__)

    def execute(self, context: Context) -> dict[str, Any]:
        """Audit the table, with a repair if configured, and return the result; see the class.

        Raises AirflowFailException for damage, and CouldNotLook if a part of the facts could not be read.
        """
        with late_imports():
            from airflow_lakestream.audit.result import AuditVerdict
            from airflow_lakestream.hooks.kafka import KafkaHook

        with airflow_errors():
            need_extras(*extras_of(self))
            repair = _is_true("repair", self.repair)
            full = _is_true("full", self.full) or repair
            address = self._address(reads_topic=full)
            full |= address is not None
            lake = lake_of(self.table)
            opened = self._opened(lake, repair=repair)
            hook = KafkaHook(self.kafka_conn_id)
            audit = lake.part("audit")(
                table=self.table,
                consumer_group=self.consumer_group,
                topic=None if self.topic in ("", "None") else self.topic,
                full=full,
                kafka=hook.configuration() if full else {},
                where=hook.where,
                stop=self._stop,
            )
            result: AuditResult = self._work(audit, opened, hook, address, repair=repair).run(opened)
        log.info(result.render())
        summary = result.to_dict(MOST_RANGES)
        if result.verdict is AuditVerdict.DAMAGE:
            # Pushed here: a failed task has no return value, and the user needs the ranges for a repair.
            context["ti"].xcom_push(key="return_value", value=summary)
            raise AirflowFailException(f"{self.table} is damaged: " + "; ".join(result.damages[:10]))
        if result.verdict is AuditVerdict.COULD_NOT_LOOK:
            raise CouldNotLook(f"{self.table}: " + " ".join(result.blind))
        return summary

    def _opened(self, lake: LakeFormat, *, repair: bool) -> Any:
        """Open the catalog or store of the table. Raises InvalidArgument for a wrong format."""
        with late_imports():
            from airflow_lakestream.hooks.places import open_tables
            from airflow_lakestream.run.mirror_repair import check_repair

        if is_given(self.table_format):
            wanted = choose(TableFormat, "table_format", self.table_format)
            if wanted is not lake.format:
                problem = f"is {wanted}, and {self.table!r} is not the name of such a table."
                raise InvalidArgument("table_format", problem)
        opened = open_tables(lake, self.iceberg_conn_id, self.storage_conn_id)
        if repair:
            check_repair(opened, self.table, "repair")
        return opened

    def _address(self, *, reads_topic: bool) -> DatabaseAddress | None:
        """Return the address of the database to compare with, or None. Raises InvalidArgument and MissingExtra."""
        if not is_given(self.against_database):
            return None
        if reads_topic:
            raise InvalidArgument("against_database", "goes without full and repair, which read the topic.")
        need_extras("database")
        with late_imports():
            from airflow_lakestream.hooks.database import source_address

        return source_address(str(self.against_database))

    def _work(
        self, audit: Audit, opened: Any, hook: KafkaHook, address: DatabaseAddress | None, *, repair: bool
    ) -> Any:
        """Return the audit for the table's kind, or the repair. Raises InvalidArgument.

        :param opened: the table's catalog or store.
        :param address: the database to compare with, or None.
        """
        with late_imports():
            from airflow_lakestream.config.arguments import json_object
            from airflow_lakestream.hooks.registry import registry_of
            from airflow_lakestream.run.fan_out_audit import audit_of, is_mirror, takes_landing
            from airflow_lakestream.run.mirror_repair import repair_of

        decodes = is_mirror(opened, self.table) or (not repair and takes_landing(opened, self.table))
        landing = json_object("landing", self.landing)
        if landing and not decodes:
            problem = f"is for a table by key or a fan-out, and {self.table} is none, or is repaired."
            raise InvalidArgument("landing", problem)
        options: dict[str, Any] = {}
        if repair or (decodes and audit.full):
            options = {name: getattr(self, name) for name in DECODING}
            registry = options["schema_registry"]
            options["schema_registry"] = registry_of(registry, hook, options["format"], options["key_format"])
        # The operator's default is an extract's; a table by key has another default, which applies without a value.
        if self.tombstones != Tombstones.KEEP or not decodes:
            options["tombstones"] = self.tombstones
        if repair:
            options["on_data_loss"] = self.on_data_loss
            return repair_of(audit, opened, options, None if self.landing is None else landing)
        return audit_of(audit, opened, {**options, **landing}, address)


def _is_true(argument: str, value: bool | str) -> bool:
    """Return a truth value, also from a rendered text. Raises InvalidArgument."""
    text = str(value).strip().lower()
    if text not in ("true", "false"):
        raise InvalidArgument(argument, f"{value!r} is neither true nor false.")
    return text == "true"
