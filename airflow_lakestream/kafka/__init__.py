"""Kafka, through confluent-kafka: what a topic holds, and reading exactly planned ranges of it."""
