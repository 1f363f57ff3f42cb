"""Where our own kernels can run, and how they are launched.

The kernels are written in Triton, which comes with torch for GPUs and is missing from CPU builds. So a module that holds
a kernel is imported only after one of the checks below. With TRITON_INTERPRET=1 (set before Triton is imported) the same
kernels run on a CPU, slowly, for tests.

    why_not(device)      the reason why kernels cannot run there, in words
    usable(*tensors)     whether kernels can take these tensors
    has_hooks(module)    whether a module must be called as a module, because hooks wait for the call

`once_differentiable` guards gradients that are written out, because kernels have no second derivatives.
"""

import importlib.util
import os
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn

from regard import checks

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
"""In which numbers are read and written; sums are always in float32."""


TRITON_FOUND = importlib.util.find_spec("triton") is not None
"""Found out once, and not by a function with a memory: torch.compile would warn of it."""


def installed() -> bool:
    """Whether Triton is there."""
    return TRITON_FOUND


def usable(*tensors: Tensor) -> bool:
    """Whether there is something in all of them, on a GPU, in numbers that kernels read, and Triton is installed.

    Inside of `torch.compile` and of exporters the plain way is taken: they see through it, and make kernels of their
    own.
    """
    return (all(tensor.is_cuda and tensor.dtype in DTYPES and tensor.numel() > 0 for tensor in tensors)
            and not torch.compiler.is_compiling() and installed())


def has_hooks(module: nn.Module) -> bool:
    """Whether hooks wait for a call of the module, or somebody has put another forward pass in its place."""
    return bool(module._forward_hooks or module._forward_pre_hooks or module._backward_hooks
                or module._backward_pre_hooks or "forward" in vars(module))


def why_not(device: torch.device) -> str | None:
    """Why kernels of our own cannot run on a device; None where they can."""
    if not installed():
        return "Triton is not installed: it comes with torch for GPUs"
    if device.type != "cuda" and not interpreted():
        return "kernels of our own are for GPUs"
    return None


def interpreted() -> bool:
    """Whether kernels are interpreted, on a CPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def launch(kernel: Any, grid: tuple[int, ...], *given: Any, **sizes: Any) -> None:
    """Run a kernel: one program for each place of the grid. What has no place at all is left."""
    if all(grid):
        _run(kernel, grid, given, sizes)


def _run_now(kernel: Any, grid: tuple[int, ...], given: tuple[Any, ...], sizes: dict[str, Any]) -> None:
    with torch.cuda.device_of(given[0]):  # which need not be the current one
        kernel[grid](*given, **sizes)


_run: Callable[[Any, tuple[int, ...], tuple[Any, ...], dict[str, Any]], None] = _run_now
"""What runs them: a recording of a test stands in for it."""


def next_power_of_2(count: int) -> int:
    """The power of two that holds so many: kernels have no other sizes."""
    return 1 << max(0, count - 1).bit_length()


def once_differentiable(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Of the backward pass of a function whose gradient is written out: to ask for a gradient of it is an error.

    Torch's own complains only where the gradient from above has one too, and takes this one for a constant elsewhere: a
    loss with a penalty on gradients would be wrong, and nobody would know.
    """
    @wraps(backward)
    def checked(ctx: Any, *upstream: Tensor) -> Any:
        if torch.is_grad_enabled():
            raise checks.wrong("create_graph", "False here: this gradient is written out, and has none of its own",
                               "True")
        return backward(ctx, *upstream)

    return checked
