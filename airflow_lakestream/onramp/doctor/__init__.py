"""What keeps a landing from working, found before the first run: one look for each part, one line for each finding."""
