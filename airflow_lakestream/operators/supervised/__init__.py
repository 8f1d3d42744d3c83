"""Base of operators with a driver of an engine: arguments, supervision, report."""
