"""Answers for a newcomer: the content of a topic, a DAG for the topic, the missing parts of a setup.

Nothing here changes a topic, a group or a table; the doctor removes its scratch files again. Imports no Airflow.
"""
