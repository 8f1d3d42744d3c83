"""Single values, and what a decoder answers."""
