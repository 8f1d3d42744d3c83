"""One topic into many Iceberg tables, each record once."""
