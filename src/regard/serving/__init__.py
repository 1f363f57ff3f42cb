"""HTTP: models as a service, for existing clients and for people; see `regard.serving.app`."""
