"""The suites of tests, and the choice of those that a change can reach. Imports no Airflow."""
