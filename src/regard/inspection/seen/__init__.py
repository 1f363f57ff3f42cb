"""What was seen, by name, call and row."""
