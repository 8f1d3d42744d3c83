"""`lakestream mirror resnapshot`: a new read of a mirror's rows from the database, to replace the old rows."""
