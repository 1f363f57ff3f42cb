"""Models as a service: many requests at once over one model."""
