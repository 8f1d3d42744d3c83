"""Keys of a mirror: which rows are one and the same, and which event says so."""
