"""Checks of a setup before the first run: a check for each part, a line for each finding."""
