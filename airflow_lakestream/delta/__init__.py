"""Delta Lake: rows to Parquet files, one commit file a landing, the ledger in a table property. No Airflow in here."""
