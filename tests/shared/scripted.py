"""The scripts of docs/ as modules."""

import importlib.util
import sys

from paged import DOCS


def script(name):
    """docs/NAME.py, imported under a name of its own."""
    spec = importlib.util.spec_from_file_location(f"docs_{name}", DOCS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
