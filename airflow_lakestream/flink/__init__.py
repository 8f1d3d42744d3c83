"""Flink as an engine: REST APIs, checkpoints, the statements of a landing, and the driver for publications."""
