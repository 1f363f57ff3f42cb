"""Storage: a model on disk is a folder of files and a manifest. It knows bytes and named tensors, and no model."""
