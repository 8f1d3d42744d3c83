"""`lakestream mirror resnapshot`: a mirror's rows are read anew from the database, aside, and take their place."""
