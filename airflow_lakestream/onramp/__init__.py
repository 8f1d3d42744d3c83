"""First questions of a newcomer: the content of a topic, a DAG for the topic, the missing parts of a setup.

Nothing in here changes a topic, a group or a table; the doctor's scratch files are removed again. Imports no Airflow.
"""
