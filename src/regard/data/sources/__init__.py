"""Data as people have it: pairs and texts read from files of every format, and translations written back into them."""
