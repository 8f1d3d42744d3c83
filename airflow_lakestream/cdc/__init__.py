"""Mirror tables: change events are applied, so that the lake has the current rows of a database's table."""
