"""Training: from a request and data files to a model folder."""
