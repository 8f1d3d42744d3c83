"""Functions of a stream: Spark keeps the state, the table says how far it is, and both are held together."""
