"""Obstacles to a landing, found before the first run: a look for each part, a line for each finding."""
