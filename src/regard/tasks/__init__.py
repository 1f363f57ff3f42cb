"""What a person holds: a model, the ids that mean something to it, and the search that uses it."""
