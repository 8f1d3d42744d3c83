"""Checked landings of an Iceberg table: the rows are checked on a branch, then published by a single commit."""
