"""A stand-in for CUDA graphs on a CPU: work is recorded operation by operation, and replayed on the same memory.

A replay runs no Python of the work: what the work read from Python when it was recorded, it reads for ever, as a graph
does. Kernels of our own are recorded too, and run in Triton's interpreter. What operations made on the way is spoiled
after each run, because a graph's memory is used by others then. Work that asks for a number, or brings one from Python,
is refused, as a GPU would. `like_a_gpu` turns off the looks that the package takes at numbers on a CPU alone.
"""

from contextlib import contextmanager

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from regard.attention import backends, fused, mask, mask_cache
from regard.kernels import launch
from regard.models import embedding
from regard.position import encoding

ASKING = {"_local_scalar_dense", "nonzero", "masked_select", "lift_fresh", "unique2", "equal", "is_nonzero"}


def tensors(value):
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def place(tensor):
    return tensor.untyped_storage().data_ptr()


class Listening(TorchDispatchMode):
    """Writes down every operation."""

    def __init__(self):
        super().__init__()
        self.made, self.operations = [], []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name.split("::")[1]
        assert name not in ASKING, f"recorded work asks for a number: {name}"
        assert name != "index" or not any(t.dtype == torch.bool for t in tensors(args[1:])), "recorded work asks where"
        found = func(*args, **(kwargs or {}))
        given = {place(tensor) for tensor in tensors((args, kwargs))}
        fresh = [tensor for tensor in tensors(found) if place(tensor) not in given and tensor.numel()]
        self.made += fresh
        if fresh or func._schema.is_mutable:
            self.operations.append((func, args, kwargs or {}, found))
        return found


    @contextmanager
    def to_kernels(self):
        """Writes down kernels too; what their interpreter does is no operation of the work."""
        def note(kernel, grid, given, sizes):
            def run():
                with _disable_current_modes():
                    launch._run_now(kernel, grid, given, sizes)

            self.operations.append((run, (), {}, None))
            run()

        before, launch._run = launch._run, note
        try:
            yield
        finally:
            launch._run = before


class Tape:
    """The same work: run as it is, then recorded, then replayed."""

    def __init__(self, work):
        self.work, self.calls, self.listening = work, 0, None

    def __call__(self):
        self.calls += 1
        if self.calls == 1:
            self.work()
        elif self.listening is None:
            self.listening = Listening()
            with self.listening, self.listening.to_kernels():
                self.work()
        else:
            self.replay()
        if self.listening is not None:
            with torch.inference_mode():
                for tensor in self.listening.made:
                    whole = 10**6 if tensor.dtype == torch.long else 1
                    tensor.fill_(torch.nan if tensor.is_floating_point() else whole)

    @torch.inference_mode()  # as a graph, which knows of no mode
    def replay(self):
        for func, args, kwargs, before in self.listening.operations:
            found = func(*args, **kwargs)
            for old, new in zip(tensors(before), tensors(found), strict=True):
                if old is not new and place(old) != place(new):
                    assert old.shape == new.shape
                    old.copy_(new)


def like_a_gpu(monkeypatch):
    """Nobody looks at numbers to save work, or to word an error."""
    for module in (mask_cache, backends, fused):
        monkeypatch.setattr(module, "may_hold", lambda flags: True)
    monkeypatch.setattr(mask_cache, "_is_ordinary", lambda tensor: False)
    monkeypatch.setattr(embedding, "_check_range", lambda *given: None)
    monkeypatch.setattr(encoding.LearnedEncoding, "_check_range", lambda self, positions: None)
    monkeypatch.setattr(encoding, "_distinct_count", lambda *given: None)
    monkeypatch.setattr(mask, "as_integers", lambda argument, tensor: tensor)
    monkeypatch.setattr(mask.Padding, "prepare", lambda self, n_queries, n_keys, device: self)
