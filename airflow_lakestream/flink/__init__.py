"""Flink as an engine: its REST APIs, its checkpoints, the statements of a landing, and the driver that publishes."""
