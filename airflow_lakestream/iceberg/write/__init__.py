"""Data files of an Iceberg table, written from rows."""
