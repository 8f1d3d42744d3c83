"""JSON: documents to rows, many at once or one by one, and columns for JSON that comes without a schema."""
