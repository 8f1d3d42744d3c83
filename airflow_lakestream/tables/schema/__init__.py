"""Columns: their types and names, as text and as Arrow's, and how a table's columns change."""
