"""Maintenance of a table: expiry, manual changes of a ledger, and the history of landings."""
