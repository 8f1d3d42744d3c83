"""Replace of rows in a Delta table: takeout and commit."""
