"""Kafka, through confluent-kafka: looks at topics, and reads of exactly the planned ranges."""
