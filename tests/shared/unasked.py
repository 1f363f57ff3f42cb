"""Work as on a GPU, where none is there: on a device of which nothing can be asked, and to which nothing is copied.

Tensors on torch's device "meta" have shapes and no numbers. Code that does one thing on a CPU and another elsewhere
does the other there, so that what cannot be recorded as a CUDA graph fails: a number that is asked for, a shape that
depends on numbers, a copy from one device to another.
"""

from contextlib import contextmanager

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

DEVICE = "meta"
ASKING = {torch.ops.aten._local_scalar_dense, torch.ops.aten.nonzero, torch.ops.aten.is_nonzero,
          torch.ops.aten.masked_select, torch.ops.aten.equal, torch.ops.aten._unique2}
COPYING = {torch.ops.aten._to_copy, torch.ops.aten.copy_}
MAKING = {torch.tensor, torch.as_tensor, torch.Tensor.new_tensor}
INDEXING = {torch.Tensor.__getitem__, torch.Tensor.__setitem__}


class AskedError(Exception):
    """The device was asked for a number, or waited for."""


class Unasked(TorchDispatchMode):
    """Refuses every operation that a CUDA graph cannot hold."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = [value for value in pytree.tree_leaves((args, kwargs or {})) if isinstance(value, torch.Tensor)]
        devices = {tensor.device.type for tensor in given}
        if func.overloadpacket in ASKING and DEVICE in devices:
            raise AskedError(f"{func} asks for a number")
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket in COPYING:
            devices.add(result.device.type)
        elif len(devices) > 1:  # a single number of the CPU is known without asking
            devices = {tensor.device.type for tensor in given if tensor.dim()}
        if len(devices) > 1:
            raise AskedError(f"{func} copies from one device to another")
        return result


class Unfilled(TorchFunctionMode):
    """Refuses Python's numbers as tensors on the device: they would be copied to it."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func in MAKING and result.device.type == DEVICE and not isinstance(args[-1], torch.Tensor):
            raise AskedError(f"{func.__name__} copies numbers to the device")
        if func in INDEXING and args[0].device.type == DEVICE:
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            if any(isinstance(part, list) for part in index):
                raise AskedError("an index that is a list is copied to the device")
        return result


@contextmanager
def unasked(monkeypatch):
    """Inside, work that asks anything of the device "meta" is an error."""
    autocast, enabled = torch.autocast, torch.is_autocast_enabled
    with monkeypatch.context() as patch, Unfilled(), Unasked():
        # There is no autocast of this device, not even to be turned off.
        patch.setattr(torch, "autocast", lambda kind, *args, **options: autocast(_known(kind), *args, **options))
        patch.setattr(torch, "is_autocast_enabled", lambda kind: enabled(_known(kind)))
        yield


def _known(kind):
    return "cpu" if kind == DEVICE else kind
