"""Columns of records without configured columns: the columns of the table created by the extract."""

from __future__ import annotations

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.schema import Schema

from airflow_lakestream.tables.schema.columns import METADATA_PREFIX
from airflow_lakestream.tables.schema.types import schema_text


def columns_of(catalog: Catalog, table: str) -> str:
    """Return a table's columns as DDL, except Kafka's metadata columns; empty without a table, or without columns."""
    try:
        schema = catalog.load_table(table).schema()
    except NoSuchTableError:
        return ""
    return schema_text(Schema(*(one for one in schema.fields if not one.name.startswith(METADATA_PREFIX))))
