"""How fresh a table is."""
