"""Kafka Connect as an engine: a connector applied, judged by its tasks, restarted, and its branch published."""
