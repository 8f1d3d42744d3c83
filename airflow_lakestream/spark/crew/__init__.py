"""Spark's executors as remote readers: shares of the plan, read, decoded and written by tasks."""
