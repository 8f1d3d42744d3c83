"""Mirror tables: the current rows of a database's table, kept up to date from change events."""
