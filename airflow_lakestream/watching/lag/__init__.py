"""What waits to be read: how much, how old, and whether it is about to leave the log."""
