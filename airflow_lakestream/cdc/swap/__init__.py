"""Replacement of all rows of a mirror, in a single commit, by rows read again into a table aside."""
