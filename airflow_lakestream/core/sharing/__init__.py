"""A landing shared by several workers or processes: shares of the plan, and the pieces handed over."""
