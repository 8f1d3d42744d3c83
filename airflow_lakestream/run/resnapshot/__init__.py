"""`lakestream mirror resnapshot`: reads a mirror's rows again from the database, and replaces the mirror's by them."""
