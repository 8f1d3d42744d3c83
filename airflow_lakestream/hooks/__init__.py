"""From Airflow connections to plain objects of the packages below. These and higher modules import Airflow."""
