"""What landings and mirrors are told: arguments, checked at once. No Airflow, no I/O."""
