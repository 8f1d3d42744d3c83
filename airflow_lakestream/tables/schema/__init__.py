"""Columns of tables: types and names, as text and in Arrow, and changes of columns."""
