"""The command line `lakestream`: wiring from arguments and Airflow connections to the packages below."""
