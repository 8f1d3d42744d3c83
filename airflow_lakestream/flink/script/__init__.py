"""The user's own Flink SQL: read, submitted as one job, supervised. Without a ledger."""
