"""Fan-out of a topic into many Iceberg tables, each record once."""
