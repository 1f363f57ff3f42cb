"""The command line: thin commands that call the library. Torch is imported only when a command needs it."""
