"""Avro: schemas, and values to columns."""
