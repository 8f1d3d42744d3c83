"""What waits in Airflow's triggerer: asyncio around the same functions that the operators call."""
