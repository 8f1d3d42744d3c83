"""How new a table is."""
