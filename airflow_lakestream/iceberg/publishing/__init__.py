"""Publication of a branch written by another engine, to main of an Iceberg table."""
