"""A batch of events merged into what a mirror holds. Arrow in, Arrow out."""
