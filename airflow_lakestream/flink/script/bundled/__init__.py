"""Scripts of Flink SQL in the package, to run or to begin with."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from string import Template

from airflow_lakestream.core.names import check_group, check_table_name, check_topic
from airflow_lakestream.exceptions import InvalidArgument, UnknownValue

_FOLDER = Path(__file__).parent
_TOPIC_SCRIPTS = ("clicks_by_minute",)
_CDC_SCRIPT = "postgres_cdc"


def flink_scripts() -> list[str]:
    """Return the names of the bundled scripts for a topic."""
    return sorted(_TOPIC_SCRIPTS)


def flink_script(name: str, *, topic: str, table: str, group: str, catalog: str = "iceberg_default") -> str:
    """Return a bundled script for a topic, for `FlinkScriptOperator`.

    :param name: `"clicks_by_minute"`: a tumbling window over a clickstream.
    :param topic: the topic to read.
    :param table: the Iceberg table to write, `database.table`.
    :param group: the consumer group in Kafka.
    :param catalog: the operator's `iceberg_conn_id`.

    Raises InvalidArgument.
    """
    if name not in flink_scripts():
        raise UnknownValue("name", name, flink_scripts())
    check_topic(topic)
    check_group(group)
    return _filled(name, table, catalog, topic=topic, group=group)


def flink_cdc_script(
    *,
    source: str,
    table: str,
    columns: str,
    key: Sequence[str] | str,
    slot: str,
    catalog: str = "iceberg_default",
) -> str:
    """Return the bundled script for mirroring a table of PostgreSQL by Flink CDC, for `FlinkScriptOperator`.

    The operator's `database_conn_id` has the database's address.

    :param source: the table to mirror, `schema.table`.
    :param table: the Iceberg table to write, `database.table`.
    :param columns: of both tables, such as `"id bigint, name string, amount decimal(12, 2)"`.
    :param key: the columns of the table's primary key.
    :param slot: the replication slot and the publication that the script makes in PostgreSQL.
    :param catalog: the operator's `iceberg_conn_id`.

    Raises InvalidArgument.
    """
    # Imported here: Airflow parses DAG files every half minute, and a topic's script needs no PyIceberg.
    from airflow_lakestream.config import arguments
    from airflow_lakestream.flink.formats.reading import type_of
    from airflow_lakestream.tables.schema.ddl import parse_schema

    schema, _, name = source.partition(".")
    if not (re.fullmatch(r"\w+", schema) and re.fullmatch(r"\w+", name)):
        problem = f"{source!r} is not of the form schema.table."
        raise InvalidArgument("source", problem, 'Write such as "public.orders".')
    if not re.fullmatch(r"[a-z0-9_]{1,63}", slot):
        problem = f"{slot!r} is not the name of a replication slot."
        raise InvalidArgument("slot", problem, "PostgreSQL takes lower-case letters, digits and '_'.")
    fields = parse_schema(columns, "columns").fields
    keys = arguments.items("key", key)
    names = [field.name for field in fields]
    if not keys or (unknown := [name for name in keys if name not in names]):
        problem = f"{', '.join(unknown)} is not one of the columns." if keys else "is missing."
        raise InvalidArgument("key", problem, "Name the columns of the table's primary key.")
    return _filled(
        _CDC_SCRIPT,
        table,
        catalog,
        schema=schema,
        source=name,
        slot=slot,
        columns=",\n  ".join(f"{_quoted(field.name)} {type_of(field.field_type, field.name)}" for field in fields),
        key=", ".join(map(_quoted, keys)),
        names=", ".join(map(_quoted, names)),
    )


def _filled(name: str, table: str, catalog: str, **values: str) -> str:
    """Return a script with names filled in; `${kafka}` and `${database}` stay for the driver.

    :param name: the script's file name without .sql.
    :param values: values of the other names in the script.

    Raises InvalidArgument for a malformed name of a table.
    """
    check_table_name(table)
    namespace, _, last = ".".join(map(_quoted, table.split("."))).rpartition(".")
    names = {"catalog": _quoted(catalog), "namespace": namespace, "table": f"{namespace}.{last}"}
    return Template((_FOLDER / f"{name}.sql").read_text()).safe_substitute(**names, **values)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
