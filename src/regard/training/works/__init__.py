"""The ways to train, each from files to batches, a loss and a score."""
