"""One landing shared by several workers or processes: shares of its plan, and the pieces they return."""
