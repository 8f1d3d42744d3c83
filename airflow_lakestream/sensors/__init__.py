"""Sensors: they wait, or check, without landing anything."""
