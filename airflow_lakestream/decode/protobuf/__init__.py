"""Protobuf: schemas, and messages to columns."""
