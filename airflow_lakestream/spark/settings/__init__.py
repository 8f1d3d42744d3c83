"""Connections as Spark's settings: of the catalog, of Kafka, of S3."""
