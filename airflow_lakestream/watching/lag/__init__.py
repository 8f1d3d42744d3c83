"""Unread records: number, age, and time until removal by retention."""
