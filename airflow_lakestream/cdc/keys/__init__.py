"""Keys of a mirror: equality of rows, and the deciding event of each row."""
