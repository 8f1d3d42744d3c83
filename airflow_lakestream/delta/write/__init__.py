"""Parquet files of a Delta table, written from rows."""
