"""The audit: a comparison of a table's rows with Kafka's remaining records of the ledger's ranges, once each."""
