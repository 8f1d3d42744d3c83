"""The compare-and-set of an Iceberg table: one snapshot with rows and ledger, or nothing."""
