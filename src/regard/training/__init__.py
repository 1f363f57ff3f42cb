"""From data and a config to a trained model."""
