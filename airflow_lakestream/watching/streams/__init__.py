"""The streams of tables: what landed, and the state of each."""
