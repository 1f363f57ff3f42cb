"""Lets the tests of recurrence, also those of its kernels, import what they share: `recurrent`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

