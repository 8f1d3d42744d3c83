"""From Airflow connections to plain objects of the packages below. Only these and higher modules import Airflow."""
