"""Rows to the Parquet files of a Delta table."""
