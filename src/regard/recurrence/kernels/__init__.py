"""The ways to run a cell over time: which exist, what each can do, which to take. They know no layers and no models."""
