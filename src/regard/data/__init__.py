"""Where sequences come from: the embedded phrasebook, which is there without a file and without a network."""
