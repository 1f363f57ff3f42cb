"""Models as a service: many requests at once over one model, and HTTP around it; see `regard.serving.app`."""
