"""Kafka, through confluent-kafka: what a topic holds, and the reading of exactly the planned ranges."""
