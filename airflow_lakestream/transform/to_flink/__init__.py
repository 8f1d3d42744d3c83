"""Translation of statements in the SQL common to DuckDB and Flink: see docs/sql.md."""
