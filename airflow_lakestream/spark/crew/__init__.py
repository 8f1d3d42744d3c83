"""Spark's executors as the crew of a landing: they get shares of the plan, and read, decode and write."""
