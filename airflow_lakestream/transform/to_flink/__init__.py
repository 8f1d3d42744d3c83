"""A statement of the common subset as Flink's SQL: see docs/sql.md."""
