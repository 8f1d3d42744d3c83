"""Kafka Connect: the JSON converter, and Debezium's change events."""
