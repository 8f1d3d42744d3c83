"""How far a stream is, how fresh its table is, and what is wrong with it: seen from outside, without Airflow."""
