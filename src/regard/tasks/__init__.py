"""What a user holds: a model with its tokenizer, ready to translate, complete, fill in, classify or embed."""
