"""How Flink reads the records of each format, and what is made of its values so that the table has the extract's."""
