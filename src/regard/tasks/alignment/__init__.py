"""Which words of two sentences belong together."""
