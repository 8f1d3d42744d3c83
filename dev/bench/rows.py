"""The rows of the table: what reads which topic, and how. A row more is an entry here; a peer more is also a module."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from typing import Any

# The events' columns, as an inferred schema has them; given where the first batch holds bad records too.
DDL = (
    "timestamp timestamp, event string, user_id string, site_id string, url string, on_site_seconds bigint, "
    "viewed_percent double"
)
# A function of the bundled DAGs, for our app and for plain Spark.
JOINED = "dags.clickstream_frames.sites:with_sites"


@dataclass(frozen=True)
class Row:
    """One line of the table.

    :param peer: the module of `dev.bench.peers` that runs it.
    :param group: rows of one group are measured by one run of the peer; by default each is its own.
    :param most: no more than so many records of the topic; a slow peer's rate shows with fewer.
    :param runs: no more than so many runs.
    :param options: what the peer's module takes.
    """

    name: str
    title: str
    peer: str
    topic: str = "json"
    group: str = ""
    most: int | None = None
    runs: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def matches(self, pattern: str) -> bool:
        """Whether a word of ONLY means it: its name, its group's or its peer's; with `*` for anything."""
        return any(fnmatch(name, pattern) for name in (self.name, self.group or self.name, self.peer))


def _extract(name: str, title: str, topic: str, **options: Any) -> tuple[Row, Row]:
    """With as many processes as the operator takes by itself, and with one."""
    return (
        Row(name, f"{title}, n processes", "extract", topic, options=options),
        Row(f"{name}-1", f"{title}, 1 process", "extract", topic, options={**options, "parallelism": 1}),
    )


def _landing_app(name: str, title: str, topic: str, runs: int | None, **options: Any) -> tuple[Row, Row, Row]:
    """With a JVM that is cold, its start counted or not, and one that is warm: three rows of one run."""
    kinds = {"warm": "warm", "cold": "cold", "start": "cold, start counted"}
    warm, cold, start = (
        Row(f"{name}-{kind}", f"kafka_to_iceberg {title}, {how}", "landing_app", topic, name, None, runs, options)
        for kind, how in kinds.items()
    )
    return warm, cold, start


def _with_and_without_proof(peer: str, title: str) -> tuple[Row, Row]:
    return (
        Row(peer, f"{title}, each row compared", peer, runs=2),
        Row(f"{peer}-unproven", f'{title}, `prove="off"`', peer, runs=2, options={"prove": "off"}),
    )


ROWS = (
    Row("kcat", "kcat to nowhere: the limit of reading", "kcat"),
    *_extract("json", "extract JSON 200 B", "json"),
    *_extract("avro", "extract Avro 200 B", "avro", format="avro"),
    *_extract("protobuf", "extract Protobuf 200 B", "protobuf", format="protobuf"),
    *_extract("raw", "extract raw 200 B", "json", format="raw"),
    Row(
        "json-bad",
        "extract JSON 200 B, 1% bad records, n processes",
        "extract",
        "json-bad",
        options={"on_error": "reject", "schema": DDL},
    ),
    Row("airflow-user", "ConsumeFromTopicOperator, batches of 1,000", "airflow_user", most=200_000),
    Row(
        "airflow-user-10000",
        "ConsumeFromTopicOperator, batches of 10,000",
        "airflow_user",
        most=1_000_000,
        options={"max_batch_size": 10_000},
    ),
    Row("dlt", "dlt, Kafka to Iceberg", "dlt", most=300_000),
    *_with_and_without_proof("connect", "Kafka Connect's Iceberg sink, published"),
    *_with_and_without_proof("flink", "Flink SQL, published"),
    Row("spark-warm", "Spark availableNow, warm", "spark", group="spark"),
    Row("spark-cold", "Spark availableNow, cold, start not counted", "spark", group="spark"),
    Row("spark-start", "Spark availableNow, cold, start counted", "spark", group="spark"),
    *_landing_app("app-json", "JSON 200 B", "json", None, schema=DDL),
    Row(
        "spark-joined-warm",
        "Spark availableNow, a small table joined, warm",
        "spark",
        group="spark-joined",
        options={"transform": JOINED},
    ),
    Row(
        "app-joined-warm",
        "kafka_to_iceberg JSON 200 B, `transform` with the same join, warm",
        "landing_app",
        group="app-joined",
        options={"schema": DDL, "transform": JOINED},
    ),
    *_landing_app("app-avro", "Avro 200 B", "avro", 2, format="avro"),
    *_landing_app("app-protobuf", "Protobuf 200 B", "protobuf", 2, format="protobuf"),
    *(
        Row(
            f"fan-out-{by}",
            f"kafka_to_iceberg JSON 200 B into 12 tables, {how}",
            "fan_out",
            group="fan-out",
            options={"table": "bench.{site_id}", "new_tables": "create", "schema": DDL},
        )
        for by, how in {"executors": "executors, warm", "one": "one process"}.items()
    ),
    Row("submit-bare", "kafka_to_iceberg, 1,000 records, spark-submit", "submit", most=1_000, options={"by": "hand"}),
    Row("submit", "kafka_to_iceberg, 1,000 records, the operator", "submit", most=1_000, options={"by": "operator"}),
    *_extract("json-1k", "extract JSON 1 KB", "json-1k"),
    *_extract("avro-1k", "extract Avro 1 KB", "avro-1k", format="avro"),
    *_extract("protobuf-1k", "extract Protobuf 1 KB", "protobuf-1k", format="protobuf"),
    *_extract("raw-1k", "extract raw 1 KB", "json-1k", format="raw"),
    Row("json-few", "extract JSON, 1,000 records", "extract", most=1_000),
    Row("json-1mib", "extract JSON 1 MiB", "extract", "json-1mib"),
    Row("raw-1mib", "extract raw 1 MiB", "extract", "json-1mib", runs=1, options={"format": "raw"}),
    Row("json-10mib", "extract JSON 10 MiB", "extract", "json-10mib", runs=1),
)


def groups(rows: Iterable[Row]) -> list[list[Row]]:
    """Return the rows by group, in the table's order."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row.group or row.name, []).append(row)
    return list(found.values())
