"""The parts of `gpu.py`: each measures some claims about speed and memory on a GPU, beside their peers."""
