"""Sensors: they wait or check, and land no rows."""
