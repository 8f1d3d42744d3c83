"""The real stack on one machine, for people and for tests: Kafka and Airflow as plain processes, no Docker.

Nothing in the package imports this; `python -m dev --help` is the way in for people, `dev.stack.Stack` for tests.
"""
