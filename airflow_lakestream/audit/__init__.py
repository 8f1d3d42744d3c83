"""The audit: whether a table holds what Kafka can still show of the ranges in its ledger, once each."""
