"""What a newcomer asks before the first landing: what is in a topic, what a DAG for it looks like, what is not set up.

Nothing in here changes a topic, a group or a table; the doctor's scratch files are removed again. Imports no Airflow.
"""
