"""Delta Lake: rows as Parquet files, a commit file per landing, the ledger in a table property. Free of Airflow."""
