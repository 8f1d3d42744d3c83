"""From Airflow connections to the plain objects of the packages below. Airflow is imported from here on up."""
