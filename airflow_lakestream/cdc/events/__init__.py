"""Change events decoded: the row, what happened to it, and all that an event says of its source."""
