"""The engines, and the capabilities of each: refusals and the table in docs/choose.md are made of these rows."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum


class EngineCapability(StrEnum):
    """Capability that not every engine has; the value is the row's head in the documentation, in Markdown."""

    FORMATS = "[formats](formats.md) of values"
    TIMES = "times made of numbers or texts, by [`schema`](schema.md)"
    SQL = "SQL for each record"
    FRAMES = "joins and UDFs of [DataFrames](dataframes.md)"
    REJECTS = "[bad records](rejects.md) rejected, and kept"
    CHECKS = "[checks](checks.md) before a commit is visible"
    INTERVALS = "data intervals, backfill"
    REPLACE = "replace"
    FAN_OUT = "[several topics or tables](operators/fan_out.md) by one task"
    DELTA = "[Delta](delta.md)"
    MIRROR = "[mirrors](cdc.md) of databases, [tables by key](upsert.md)"
    AUDIT = "[audit](operators/audit.md)"


# Operators by the engine's name in pipelines, where a mirror is a mode.
ENGINES = {
    "extract": "`KafkaExtractOperator`",
    "mirror": "[`KafkaMirrorOperator`](operators/kafka_mirror.md)",
    "group": "`kafka_extract_group`",
    "spark": "`SparkStreamingSubmitOperator`",
    "flink": "`FlinkSqlOperator`",
    "connect": "`KafkaConnectOperator`",
}
_ROWS = "no: it has the rows of the database's table"
_FAILS = "no: the connector fails, and the record is named"
_CURRENT = "except [histories](upsert.md#history)"
# A cell for each engine: limits, or "no" with the reason.
_CELLS = {
    EngineCapability.FORMATS: (
        "all",
        "Debezium's, and [by key](upsert.md) all except raw",
        "all",
        "all",
        "JSON, Avro, raw",
        "those of Connect's converters",
    ),
    EngineCapability.TIMES: ("yes", "no", "yes", "yes", "no: Flink decodes the records", "no"),
    EngineCapability.SQL: ("yes", _ROWS, "yes", "yes", "a [common subset](sql.md#on-flink), and Flink's own", "no"),
    EngineCapability.FRAMES: ("no", "no", "no", "yes", "no", "no"),
    EngineCapability.REJECTS: ("yes", "with `on_error`", "yes", "yes", "with `on_error`", _FAILS),
    EngineCapability.CHECKS: ("yes", "yes", "yes", "yes", "yes", "yes"),
    EngineCapability.INTERVALS: ("yes", "no", "yes", "as one batch", "no", "no"),
    EngineCapability.REPLACE: ("yes", "no", "no: one task replaces rows", "as one batch", "no", "no"),
    EngineCapability.FAN_OUT: ("yes", "several topics", "no", "yes", "no", "no"),
    EngineCapability.DELTA: ("yes", "yes", "yes", "yes", "no", "no"),
    EngineCapability.MIRROR: ("no", "within one worker", "no", "`cdc_to_iceberg`, `cdc_to_delta`", "no", "no"),
    EngineCapability.AUDIT: (
        *("yes", f"[row by row](cli.md#tables-by-key), {_CURRENT}", "yes"),
        *(f"yes; mirrors {_CURRENT}", "yes", "yes"),
    ),
}


def lack_of(engine: str, capability: EngineCapability) -> tuple[str, str] | None:
    """Return the end of a sentence against a capability that an engine lacks, and the way out; or None."""
    cells = dict(zip(ENGINES, _CELLS[capability], strict=True))
    if not _is_lack(cells[engine]):
        return None
    who = "a mirror" if engine == "mirror" else f"the engine {engine}"
    # A pipeline's mirror runs by the engine extract.
    able = dict.fromkeys(name.replace("mirror", "extract") for name, cell in cells.items() if not _is_lack(cell))
    reason = cells[engine].removeprefix("no")
    return f"is not for {who}{reason}.", f"Leave it out, or take another engine: {', '.join(able)}."


def _is_lack(cell: str) -> bool:
    return cell.startswith("no")


def engines_table() -> Iterator[str]:
    """Yield the lines of the table of all capabilities, in Markdown."""
    yield f"| | {' | '.join(ENGINES.values())} |"
    yield f"|---|{'---|' * len(ENGINES)}"
    for capability, cells in _CELLS.items():
        yield f"| {capability} | {' | '.join(cells)} |"
