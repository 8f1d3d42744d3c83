"""Connections as Spark settings: for the catalog, Kafka and S3."""
