"""Iceberg, through PyIceberg: reading a table's ledger, and committing rows and ledger together."""
