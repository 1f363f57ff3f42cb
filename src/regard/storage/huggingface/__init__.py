"""Folders as the library `transformers` has them, config.json and safetensors: read into our models, and written."""
