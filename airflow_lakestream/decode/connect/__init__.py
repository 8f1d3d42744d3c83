"""Kafka Connect: its JSON converter, and Debezium's change events."""
