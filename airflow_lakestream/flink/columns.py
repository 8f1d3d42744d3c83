"""The columns of records that nobody has told: those of the table, which the extract makes from the first records."""

from __future__ import annotations

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.schema import Schema

from airflow_lakestream.tables.schema.columns import METADATA_PREFIX
from airflow_lakestream.tables.schema.types import schema_text


def columns_of(catalog: Catalog, table: str) -> str:
    """Return the columns of a table as DDL, without those of Kafka's; empty without a table, or without any."""
    try:
        schema = catalog.load_table(table).schema()
    except NoSuchTableError:
        return ""
    return schema_text(Schema(*(one for one in schema.fields if not one.name.startswith(METADATA_PREFIX))))
