"""Checks of a landing's rows, by DuckDB over its Parquet files. Uses the core, Arrow, and the walls of `transform`."""
