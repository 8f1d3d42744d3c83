"""Landings of an Iceberg table whose rows are checked on a branch before one commit publishes them."""
