"""Streams of tables, with landings and states."""
