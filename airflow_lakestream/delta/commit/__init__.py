"""The compare-and-set of a Delta table: one version, or nothing."""
