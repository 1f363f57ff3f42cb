"""Tests of kernels in Triton: interpreted on a CPU, compiled on a GPU, left out where Triton is missing.

    pytest.importorskip("triton")
    from interpreting import only_interpreted       an autouse fixture: what has no `gpu` mark needs the interpreter
"""

import pytest

from regard.kernels import launch


@pytest.fixture(autouse=True)
def only_interpreted(request):
    """Leave out tests on CPU tensors where kernels are compiled."""
    if not launch.interpreted() and request.node.get_closest_marker("gpu") is None:
        pytest.skip("the kernels are compiled here")
