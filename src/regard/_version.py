"""The version of regard: the one place where it is written. The build reads it from here, and it imports nothing."""


__version__ = "0.1.0"
