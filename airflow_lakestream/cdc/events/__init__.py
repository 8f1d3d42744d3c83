"""Decoded change events: the row, what happened to it, and what the event says of its source."""
