"""Configuration of landings and mirrors: arguments, validated on construction. No Airflow, no I/O."""
