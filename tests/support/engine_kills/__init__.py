"""Streams of real engines over a topic that flows, while one process after the other is killed."""
