"""What a replace or a repair takes out of an Iceberg table, and its commit."""
