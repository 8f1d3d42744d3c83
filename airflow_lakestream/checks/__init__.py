"""Checks of a landing's rows, by DuckDB over Parquet files. Uses the core, Arrow, and the limits of `transform`."""
