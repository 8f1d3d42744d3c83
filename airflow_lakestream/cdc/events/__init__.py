"""Decoded change events: the row, the operation, and the event's origin and log position."""
