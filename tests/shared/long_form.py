"""The long form of a test: every case with REGARD_LONG=1, and a sample of them otherwise."""

import os

LONG = os.environ.get("REGARD_LONG") == "1"


def sample(cases, *numbers):
    """All cases in the long form; otherwise those with these numbers, counted from 0."""
    return list(cases) if LONG else [list(cases)[number] for number in numbers]
