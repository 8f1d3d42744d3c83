"""Complete hours or days of a table: emitted once, and again after late rows."""
