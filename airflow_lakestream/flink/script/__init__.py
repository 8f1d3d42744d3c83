"""Flink SQL of the user's own: read, submitted as one job, supervised. It has no ledger."""
