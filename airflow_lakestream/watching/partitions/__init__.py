"""Which hours or days of a table are complete and not told yet, and which have got rows since they were told."""
