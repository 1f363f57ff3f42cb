"""The page in a browser: its document, its data, and a server on this machine."""
