"""The scene of a forecast from above: a page, and a picture."""
