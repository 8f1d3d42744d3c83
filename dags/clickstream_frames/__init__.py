"""Functions of DataFrames for the clickstream."""
