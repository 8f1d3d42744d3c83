"""One module per service: what it needs on disk, how it starts, when it is ready."""
