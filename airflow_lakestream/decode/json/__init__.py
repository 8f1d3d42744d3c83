"""JSON: decoders of documents into rows, many at once or individually, and inference of columns."""
