"""What a model looks at, made visible."""
