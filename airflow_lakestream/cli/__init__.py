"""The command line `lakestream`: wiring only, from arguments and Airflow connections to the packages below."""
