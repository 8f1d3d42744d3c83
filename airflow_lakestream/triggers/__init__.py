"""Triggers for Airflow's triggerer: asyncio around the functions of the operators."""
