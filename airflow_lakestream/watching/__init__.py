"""How far a stream is, how fresh its table, and what is wrong with it: looked at from outside, without Airflow."""
