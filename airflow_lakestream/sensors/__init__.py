"""Sensors: they wait or check, and land nothing."""
