"""Table formats, with all differences between Iceberg and Delta for the upper layers."""
