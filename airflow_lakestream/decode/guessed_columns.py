"""Log lines about the columns that first records give a new table, which keeps them for later records, too."""

from __future__ import annotations

import logging

import pyarrow as pa

from airflow_lakestream.core.policies import ValueFormat
from airflow_lakestream.core.records import RawBatch
from airflow_lakestream.decode.formats import PayloadFormats
from airflow_lakestream.decode.json.kinds import kinds_of, remarks
from airflow_lakestream.decode.values.outcome import pick
from airflow_lakestream.tables.schema.columns import to_schema
from airflow_lakestream.tables.schema.types import schema_text

log = logging.getLogger(__name__)

# Records whose kinds of values are counted, spread over the first batch: 10,000 wide ones would take a second.
_SAMPLE = 1_000
_REMARKS = 10


def log_guessed_columns(payload: PayloadFormats, first: RawBatch, columns: pa.Schema) -> None:
    """Log the columns of a new table that first records gave, and remarks about them as warnings.

    Columns of a registry's schema or of a fixed format are not guessed; a mirror logs its own.
    """
    if payload.gets_columns or payload.row.first_columns is None:
        return
    schema = to_schema(columns)
    log.info(
        "%s: the new table gets these columns for good, guessed from %s records: %s. To choose them, give schema "
        "before the first run.",
        first.topic,
        len(first),
        schema_text(schema),
    )
    if payload.format != ValueFormat.JSON or payload.envelope is not None or payload.renamed:
        return
    sample = pick(first, range(0, len(first), max(1, len(first) // _SAMPLE)))
    for remark in list(remarks(schema, kinds_of([sample]), {}, "schema"))[:_REMARKS]:
        log.warning("%s: column %s", first.topic, remark)
