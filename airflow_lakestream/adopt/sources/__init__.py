"""Where a tool's position is read: one module for each tool."""
