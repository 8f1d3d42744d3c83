"""The branch that another engine writes, and how its files get on main of an Iceberg table."""
