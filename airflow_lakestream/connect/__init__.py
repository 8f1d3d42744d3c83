"""Kafka Connect as an engine: connectors applied, judged by tasks, restarted, and branches published."""
