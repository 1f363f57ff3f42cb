"""From text to ids and back: subwords, characters, bytes, and the tokenizers of other people's models."""
