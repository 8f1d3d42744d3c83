"""Sources of a tool's position: a module for each tool."""
