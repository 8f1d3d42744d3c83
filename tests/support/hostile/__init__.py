"""Random databases that are hard to mirror, what is done to them, and who says what a mirror has to hold."""
