"""Keys of a mirror: which rows are the same, and which event decides about a row."""
