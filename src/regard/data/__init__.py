"""Training data: reading files, filters, tokenizers, the token store, batches, and the phrasebook."""
