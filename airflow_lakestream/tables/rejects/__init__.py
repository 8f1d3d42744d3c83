"""Rejected records of tables of every format: the choice of counting rows, and a sink with a reject table."""
