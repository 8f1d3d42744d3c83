"""Records that became no row, for tables of every format: which of them count, and a sink that keeps them."""
