"""Where our own kernels can run, and how they are launched.

The kernels are written in Triton, which comes with torch for GPUs and is missing from CPU builds. So a module that
holds a kernel is imported only after one of the checks below. With TRITON_INTERPRET=1 (set before Triton is imported)
the same kernels run on a CPU, slowly, for tests.

    why_not(device)      the reason why kernels cannot run there, in words
    usable(*tensors)     whether kernels can take these tensors
    has_hooks(module)    whether a module must be called as a module, because hooks wait for the call
    in_torch_func()      whether vmap, grad or another transform of torch.func is running
    is_readable(tensor)  whether the host can read its numbers now

`once_differentiable` guards gradients that are written out, because kernels have no second derivatives.
"""

import importlib.util
import os
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_modules

from regard import checks

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
"""The dtypes that kernels read and write; sums are always in float32."""
TRITON_FOUND = importlib.util.find_spec("triton") is not None
"""Determined at import, and not by a cached function, of which torch.compile would warn."""


def installed() -> bool:
    """Whether Triton is installed."""
    return TRITON_FOUND


def usable(*tensors: Tensor) -> bool:
    """Whether kernels can take these tensors: none is empty, all are on a GPU in a dtype of `DTYPES`, Triton is
    installed.

    False inside of `torch.compile` and of exporters, which trace plain torch code and make kernels of their own, and
    inside of torch.func, which transforms plain torch code.
    """
    return (all(tensor.is_cuda and tensor.dtype in DTYPES and tensor.numel() > 0 for tensor in tensors)
            and not torch.compiler.is_compiling() and not in_torch_func() and installed())


def in_torch_func() -> bool:
    """Whether a transform of torch.func is running: it takes neither numbers read by the host nor our own gradients."""
    return torch._C._are_functorch_transforms_active()


def is_readable(tensor: Tensor) -> bool:
    """Whether the host can read numbers of this tensor now: not on a GPU, while compiling, or inside of torch.func."""
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling() and not in_torch_func()


def has_hooks(module: nn.Module) -> bool:
    """Whether the module has hooks, or its `forward` was replaced on the instance."""
    return bool(module._forward_hooks or module._forward_pre_hooks or module._backward_hooks
                or module._backward_pre_hooks or "forward" in vars(module))


def has_global_hooks() -> bool:
    """Whether hooks are registered for all modules."""
    return bool(torch_modules._global_forward_hooks or torch_modules._global_forward_pre_hooks)


def why_not(device: torch.device) -> str | None:
    """Why our own kernels cannot run on a device; None where they can."""
    if not installed():
        return "Triton is not installed: it comes with torch for GPUs"
    if device.type != "cuda" and not interpreted():
        return "our own kernels run on GPUs only"
    return "torch.func transforms plain torch code only" if in_torch_func() else None


def interpreted() -> bool:
    """Whether kernels run in Triton's interpreter, on a CPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
    """Run a kernel: one program for each point of the grid. An empty grid runs nothing."""
    if all(grid):
        _run(kernel, grid, arguments, options)


def _run_now(kernel: Any, grid: tuple[int, ...], arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
    with torch.cuda.device_of(arguments[0]):  # which need not be the current device
        kernel[grid](*arguments, **options)


_run: Callable[[Any, tuple[int, ...], tuple[Any, ...], dict[str, Any]], None] = _run_now
"""The function that runs kernels; tests replace it to observe launches."""


def next_power_of_2(count: int) -> int:
    """The smallest power of two that is at least `count`; sizes in kernels are powers of two."""
    return 1 << max(0, count - 1).bit_length()


def once_differentiable(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a backward pass that is written by hand, so that requesting second derivatives is an error.

    torch's own decorator raises only where the incoming gradient requires grad too, and otherwise takes this gradient
    for a constant: a loss with a penalty on gradients would be silently wrong. Nor does autocast change the dtypes of
    such a pass, which are those of its forward pass.
    """
    @wraps(backward)
    def checked(ctx: Any, *upstream: Tensor) -> Any:
        if torch.is_grad_enabled():
            raise checks.wrong("create_graph", "False: the fused kernels have no second derivatives", "True")
        device = upstream[0].device.type
        if not torch.is_autocast_enabled(device):
            return backward(ctx, *upstream)
        with torch.autocast(device, enabled=False):
            return backward(ctx, *upstream)

    return checked
