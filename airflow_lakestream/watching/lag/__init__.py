"""Unread records: how many, how old, and whether they are about to leave the log."""
