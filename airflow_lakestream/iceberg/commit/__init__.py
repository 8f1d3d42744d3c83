"""Compare-and-set commits of an Iceberg table, with rows and ledger in the same snapshot."""
