"""Flink's reading of each format, and the expressions for the same values in the table as the extract's."""
