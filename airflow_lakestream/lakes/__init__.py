"""What each table format is to all that is above: where one differs from the other, it is said here."""
