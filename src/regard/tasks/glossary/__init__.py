"""Terms that must appear in a translation, in their places."""
