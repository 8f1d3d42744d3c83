"""Functions of a stream: Spark keeps the state, the table the last batch, and both are kept at the same batch."""
