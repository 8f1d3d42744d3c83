"""Replace and repair of rows in an Iceberg table: takeout and commit."""
