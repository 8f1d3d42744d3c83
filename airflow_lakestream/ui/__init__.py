"""Additions to Airflow's own web server: the page of streams and the documentation."""
