"""Sources of records for the stack: made-up clickstream events, and real flights."""
