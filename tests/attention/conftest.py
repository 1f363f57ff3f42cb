"""Lets the tests of attention, also those of its kernels, import what they share: `problems`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
