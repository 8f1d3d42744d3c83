"""One landing shared by several workers or processes: shares of its plan, and pieces that come back."""
