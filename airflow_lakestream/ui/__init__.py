"""What Lakestream adds to Airflow's own web server: its documentation."""
