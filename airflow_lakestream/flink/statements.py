"""The statements of a landing by Flink: catalog, source, and the INSERT into a branch.

The source names the columns of the records, and where each record was: topic, partition, offset and timestamp. Whatever
a user's SELECT makes of it, the positions have to come along, since the publication lands by them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import singledispatch

from pyiceberg import types as iceberg
from pyiceberg.schema import Schema
from pyiceberg.types import IcebergType

from airflow_lakestream.core.names import METADATA_NAMES as METADATA_NAMES
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.spark.settings.catalog import catalog_settings, prefix_of
from airflow_lakestream.spark.settings.kafka import NAMES_A_CLASS, kafka_options

# Flink's jar of SQL's connector keeps Kafka's client, and the classes that log in, below this name.
_SHADED = "org.apache.flink.kafka.shaded."
SOURCE, LANDED = "source", "landed"
# The columns that say where a record was, with what Kafka's connector has for them.
_METADATA = {
    "topic": "`_kafka_topic` STRING METADATA FROM 'topic' VIRTUAL",
    "partition": "`_kafka_partition` INT METADATA FROM 'partition' VIRTUAL",
    "offset": "`_kafka_offset` BIGINT METADATA FROM 'offset' VIRTUAL",
    "timestamp": "`_kafka_timestamp` TIMESTAMP_LTZ(3) METADATA FROM 'timestamp' VIRTUAL",
}
METADATA = tuple(_METADATA)
COLUMNS = tuple(f"_kafka_{name}" for name in METADATA)
_FORMATS = {
    # Whatever does not fit a column fails the job: a record is never left out without a word.
    "json": {"format": "json", "json.ignore-parse-errors": "false", "json.timestamp-format.standard": "ISO-8601"},
}
FORMATS = tuple(_FORMATS)
_PLAIN: Mapping[IcebergType, str] = {
    iceberg.BooleanType(): "BOOLEAN",
    iceberg.IntegerType(): "INT",
    iceberg.LongType(): "BIGINT",
    iceberg.FloatType(): "FLOAT",
    iceberg.DoubleType(): "DOUBLE",
    iceberg.DateType(): "DATE",
    iceberg.StringType(): "STRING",
    iceberg.BinaryType(): "BYTES",
    iceberg.TimestampType(): "TIMESTAMP(6)",
    iceberg.TimestamptzType(): "TIMESTAMP_LTZ(6)",
}


def catalog(name: str, properties: Mapping[str, str]) -> str:
    """Return the statement that opens PyIceberg's catalog in Flink, under the same name. Raises InvalidArgument."""
    prefix = f"{prefix_of(name)}."
    found = {key.removeprefix(prefix): value for key, value in catalog_settings(name, properties, {}).items()}
    found.pop(prefix_of(name))
    kind = found.pop("type")
    # Flink knows three types by name; of any other it wants the class.
    if kind in ("jdbc", "glue"):
        classes = {"jdbc": "org.apache.iceberg.jdbc.JdbcCatalog", "glue": "org.apache.iceberg.aws.glue.GlueCatalog"}
        found["catalog-impl"] = classes[kind]
    else:
        found["catalog-type"] = kind
    return f"CREATE CATALOG {quoted(name)} WITH ({with_options({'type': 'iceberg', **found})})"


def source(
    topic: str,
    columns: Schema,
    kafka: Mapping[str, str],
    consumer_group: str,
    record_format: str,
    starts: Mapping[int, int],
) -> str:
    """Return the statement that names the topic's records. Raises InvalidArgument.

    :param kafka: librdkafka's configuration; the statement holds its secrets.
    :param starts: by partition, where a job without a state begins.
    """
    fields = [f"{quoted(field.name)} {type_of(field.field_type, field.name)}" for field in columns.fields]
    options = {
        "connector": "kafka",
        "topic": topic,
        **client_options(kafka),
        "properties.group.id": consumer_group,
        # The group's offsets in Kafka are a mirror of the ledger, which the publication writes.
        "properties.commit.offsets.on.checkpoint": "false",
        "properties.isolation.level": "read_committed",
        "scan.startup.mode": "specific-offsets",
        "scan.startup.specific-offsets": ";".join(f"partition:{p},offset:{o}" for p, o in sorted(starts.items())),
        "scan.topic-partition-discovery.interval": "30s",
        **_FORMATS[record_format],
    }
    return (
        f"CREATE TEMPORARY TABLE {SOURCE} ({', '.join([*fields, *_METADATA.values()])}) WITH ({with_options(options)})"
    )


def client_options(kafka: Mapping[str, str]) -> dict[str, str]:
    """Return what Kafka's connector is told of a client. Raises InvalidArgument.

    :param kafka: librdkafka's configuration, secrets included.
    """
    found = {key.removeprefix("kafka."): value for key, value in kafka_options(kafka).items()}
    found |= {key: f"{_SHADED}{found[key]}" for key in NAMES_A_CLASS if key in found}
    return {f"properties.{key}": value for key, value in found.items()}


def view(select: str | None) -> str:
    """Return the statement that names the rows to land."""
    return f"CREATE TEMPORARY VIEW {LANDED} AS {select or f'SELECT * FROM {SOURCE}'}"


def insert(catalog_name: str, table: str, branch: str, columns: Sequence[str]) -> str:
    """Return the statement that lands the rows in a branch."""
    path = ".".join(quoted(part) for part in (catalog_name, *table.split(".")))
    names = ", ".join(map(quoted, columns))
    return (
        f"INSERT INTO {path} /*+ OPTIONS({with_options({'branch': branch})}) */ ({names}) SELECT {names} FROM {LANDED}"
    )


def settings(values: Mapping[str, str]) -> list[str]:
    """Return the statements that set what a session's jobs run with."""
    return [f"SET {_text(key)} = {_text(value)}" for key, value in values.items()]


def quoted(name: str) -> str:
    """Return a name as SQL has it."""
    return "`" + name.replace("`", "``") + "`"


@singledispatch
def type_of(kind: IcebergType, column: str) -> str:
    """Return Flink's name of a type. Raises InvalidArgument for one that its JSON can't fill."""
    if kind not in _PLAIN:
        raise InvalidArgument(
            "columns", f"{column!r} is of type {kind}, which Flink's landing can't fill.", "Take a string."
        )
    return _PLAIN[kind]


@type_of.register
def _(kind: iceberg.DecimalType, column: str) -> str:
    return f"DECIMAL({kind.precision}, {kind.scale})"


@type_of.register
def _(kind: iceberg.ListType, column: str) -> str:
    return f"ARRAY<{type_of(kind.element_type, column)}>"


@type_of.register
def _(kind: iceberg.MapType, column: str) -> str:
    return f"MAP<{type_of(kind.key_type, column)}, {type_of(kind.value_type, column)}>"


@type_of.register
def _(kind: iceberg.StructType, column: str) -> str:
    fields = (f"{quoted(field.name)} {type_of(field.field_type, f'{column}.{field.name}')}" for field in kind.fields)
    return f"ROW<{', '.join(fields)}>"


def with_options(values: Mapping[str, str]) -> str:
    """Return options as they stand in WITH (...), or in a hint."""
    return ", ".join(f"{_text(key)} = {_text(value)}" for key, value in values.items())


def _text(value: str) -> str:
    return "'" + str(value).replace("'", "''") + "'"
