"""RWKV, versions 4 and 7: recurrences that are trained in parallel and run with a state of constant size."""
