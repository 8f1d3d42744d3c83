"""Single values, and the result of a decoder."""
