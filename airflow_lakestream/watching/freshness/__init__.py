"""Freshness of tables."""
