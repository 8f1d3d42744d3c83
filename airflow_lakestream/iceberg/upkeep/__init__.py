"""What is done to a table besides landing: expiry, changes of a ledger by hand, its history."""
