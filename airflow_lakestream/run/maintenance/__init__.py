"""Maintenance of tables in the worker, without Spark."""
