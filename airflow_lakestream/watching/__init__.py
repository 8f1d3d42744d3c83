"""Progress, freshness and problems of streams, observed from outside and without Airflow."""
