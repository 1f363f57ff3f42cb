"""Training tasks: one file for each, with its data, objective and validation."""
