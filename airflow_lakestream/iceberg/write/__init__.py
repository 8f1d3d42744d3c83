"""Rows to the data files of an Iceberg table."""
