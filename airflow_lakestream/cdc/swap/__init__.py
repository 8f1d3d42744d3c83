"""Replaces all rows of a mirror, in one commit, by rows that were read again into a table aside."""
