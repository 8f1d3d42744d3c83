"""What a replace takes out of a Delta table, and its commit."""
