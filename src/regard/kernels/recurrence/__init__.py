"""The package recurrence."""
