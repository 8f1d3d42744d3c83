"""Mirror tables: the change events of a database's table, applied, so that the lake has its rows as they are now."""
