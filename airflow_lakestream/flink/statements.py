"""The statements of a landing by Flink: catalog, source, and the INSERT into a branch.

The source has the columns of the records, and each record's position: topic, partition, offset and timestamp. A user's
SELECT has to keep the positions, since the publication lands by them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from airflow_lakestream.flink.formats.reading import FormatReading, quoted
from airflow_lakestream.spark.kafka_settings import NAMES_A_CLASS, kafka_options
from airflow_lakestream.spark.lake_settings import catalog_options, check_name

# Java package of Kafka's client, and of the classes that log in, in the jar of Flink's SQL connector.
_SHADED = "org.apache.flink.kafka.shaded."
# Names in the session: the records in their format's types, the records with the user's columns, the rows to land.
RECORDS, SOURCE, LANDED = "records", "source", "landed"
# The statement that returns the plan of the rows to land.
PLAN = f"EXPLAIN SELECT * FROM {LANDED}"
# The columns of a record's position, with their definitions for Kafka's connector.
_METADATA = {
    "topic": "`_kafka_topic` STRING METADATA FROM 'topic' VIRTUAL",
    "partition": "`_kafka_partition` INT METADATA FROM 'partition' VIRTUAL",
    "offset": "`_kafka_offset` BIGINT METADATA FROM 'offset' VIRTUAL",
    "timestamp": "`_kafka_timestamp` TIMESTAMP_LTZ(3) METADATA FROM 'timestamp' VIRTUAL",
}
METADATA = tuple(_METADATA)
COLUMNS = tuple(f"_kafka_{name}" for name in METADATA)
# The steps of Flink's plans that make at most a row of each record; Union and Reused are of UNION ALL.
_BY_ROW = ("TableSourceScan", "Calc", "PythonCalc", "Union", "Reused")
_REMEDY = "Take it out of the connection, or give Flink's tasks an iceberg_conn_id without it."


def create_catalog(name: str, properties: Mapping[str, str], table: str = "") -> str:
    """Return the statement for opening PyIceberg's catalog in Flink, with the same name. Raises InvalidArgument.

    :param table: the landed table. Flink's databases have a single level: levels above become the catalog's base
        namespace.
    """
    check_name(name, "Flink")
    options = catalog_options(properties, "Flink", _REMEDY)
    kind = options.pop("type")
    # Flink has short names for three types; other types need a class.
    if kind in ("jdbc", "glue"):
        classes = {"jdbc": "org.apache.iceberg.jdbc.JdbcCatalog", "glue": "org.apache.iceberg.aws.glue.GlueCatalog"}
        options["catalog-impl"] = classes[kind]
    else:
        options["catalog-type"] = kind
    if len(levels := table.split(".")) > 2:
        # The table's database exists; Iceberg would create any other default database.
        options |= {"base-namespace": ".".join(levels[:-2]), "default-database": levels[-2]}
    return f"CREATE CATALOG {quoted(name)} WITH ({with_options({'type': 'iceberg', **options})})"


def create_source(
    topic: str, reading: FormatReading, kafka: Mapping[str, str], consumer_group: str, starts: Mapping[int, int]
) -> list[str]:
    """Return the statements for the topic's records as a source. Raises InvalidArgument.

    :param kafka: librdkafka's configuration; the statements hold its secrets, and the registry's.
    :param starts: by partition, the start of a job without a state.
    """
    fields = [f"{quoted(name)} {kind}" for name, kind in reading.fields.items()]
    options = {
        "connector": "kafka",
        "topic": topic,
        **client_options(kafka),
        "properties.group.id": consumer_group,
        # The publication commits the group's offsets in Kafka, which follow the ledger.
        "properties.commit.offsets.on.checkpoint": "false",
        "properties.isolation.level": "read_committed",
        "scan.startup.mode": "specific-offsets",
        "scan.startup.specific-offsets": ";".join(f"partition:{p},offset:{o}" for p, o in sorted(starts.items())),
        "scan.topic-partition-discovery.interval": "30s",
        **reading.options,
    }
    name = SOURCE if reading.expressions is None else RECORDS
    table = (
        f"CREATE TEMPORARY TABLE {name} ({', '.join([*fields, *_METADATA.values()])}) WITH ({with_options(options)})"
    )
    if reading.expressions is None:
        return [table]
    columns = [f"{expression} AS {quoted(column)}" for column, expression in reading.expressions.items()]
    return [table, f"CREATE TEMPORARY VIEW {SOURCE} AS SELECT {', '.join([*columns, *COLUMNS])} FROM {RECORDS} AS r"]


def client_options(kafka: Mapping[str, str]) -> dict[str, str]:
    """Return a client's options for Kafka's connector. Raises InvalidArgument.

    :param kafka: librdkafka's configuration, secrets included.
    """
    options = {key.removeprefix("kafka."): value for key, value in kafka_options(kafka).items()}
    options |= {key: f"{_SHADED}{options[key]}" for key in NAMES_A_CLASS if key in options}
    return {f"properties.{key}": value for key, value in options.items()}


def create_view(select: str | None) -> str:
    """Return the statement for naming the rows to land."""
    return f"CREATE TEMPORARY VIEW {LANDED} AS {select or f'SELECT * FROM {SOURCE}'}"


def find_steps_beyond_rows(plan: str) -> list[str]:
    """Return the steps of an EXPLAIN's plan that do more than to make or leave out a row for each record."""
    plan_text = plan.partition("== Optimized Execution Plan ==")[2]
    steps = re.findall(r"^[ :|+-]*([A-Z][A-Za-z]*)\(", plan_text, re.MULTILINE)
    return [name for name in dict.fromkeys(steps) if name not in _BY_ROW]


def insert_rows(catalog_name: str, table: str, branch: str, columns: Sequence[str]) -> str:
    """Return the statement for landing the rows in a branch."""
    path = ".".join(quoted(part) for part in (catalog_name, *table.split(".")[-2:]))
    names = ", ".join(map(quoted, columns))
    return (
        f"INSERT INTO {path} /*+ OPTIONS({with_options({'branch': branch})}) */ ({names}) SELECT {names} FROM {LANDED}"
    )


def set_settings(values: Mapping[str, str]) -> list[str]:
    """Return the statements for the settings of a session's jobs."""
    return [f"SET {_text(key)} = {_text(value)}" for key, value in values.items()]


def with_options(values: Mapping[str, str]) -> str:
    """Return options in the form of WITH (...), or of a hint."""
    return ", ".join(f"{_text(key)} = {_text(value)}" for key, value in values.items())


def _text(value: str) -> str:
    return "'" + str(value).replace("'", "''") + "'"
