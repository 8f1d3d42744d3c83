"""What waits in Airflow's triggerer: asyncio around the functions that the operators call."""
