"""The command line `lakestream`: from arguments and Airflow connections to the packages below."""
