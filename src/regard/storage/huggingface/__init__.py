"""Models of Hugging Face `transformers`: read as ours, and ours written for it."""
