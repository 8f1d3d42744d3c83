"""The streams of tables: what landed in them, and what each is doing."""
