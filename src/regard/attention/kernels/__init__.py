"""The ways to compute attention: which exist, what each can do, which to take. They know no layers and no models."""
