"""Compare-and-set commits of a Delta table: each commit is a version, or is not applied."""
