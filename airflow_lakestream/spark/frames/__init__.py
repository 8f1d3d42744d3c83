"""Functions of DataFrames between decoded records and a table: loaded, called on staged rows, their result landed."""
