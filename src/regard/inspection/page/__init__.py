"""The page: a trace in a browser, as one file or served to this machine alone."""
