"""What operators share whose work is done by a driver of an engine: arguments, supervision, report."""
