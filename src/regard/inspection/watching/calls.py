"""Calls of torch's fused attention and of softmax, told to whoever listens, and the modules in which they happen.

    by_name    the functions are replaced where callers look them up: all else that runs takes the time it always takes
    by_mode    a mode of torch sees every call, also by a name that the caller has imported, and of the method of a
               tensor, but every operation of the model takes a few microseconds more

Neither changes what is computed. It does not know what is made of a call.
"""

import functools
import sys
import threading
from collections.abc import Callable, Container, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

FUSED, SOFTMAX = "scaled_dot_product_attention", "softmax"
Listener = Callable[[str, tuple[Any, ...], dict[str, Any], Any], None]
"""Told the name of the function, what it was given by place and by name, and its result."""

_PLACES: tuple[tuple[Any, str], ...] = ((F, FUSED), (F, SOFTMAX), (torch, SOFTMAX))
"""Where callers find the functions. The method of tensors is none of them: where a class changes, Python forgets what
it knows of it, and all that uses tensors is slower for a while."""
_FUNCTIONS = {F.scaled_dot_product_attention: FUSED, F.softmax: SOFTMAX, torch.softmax: SOFTMAX,
              Tensor.softmax: SOFTMAX}
_CALL = nn.Module._call_impl.__code__


def by_name(listener: Listener) -> AbstractContextManager[None]:
    """Tell a listener, inside the `with` block, of every call of a function that is found by its own name."""
    return _replacement.telling(listener)


class by_mode(TorchFunctionMode):  # noqa: N801 (it is called as `by_name` is)
    """Tell a listener, inside the `with` block, of every call in this thread."""

    def __init__(self, listener: Listener) -> None:
        super().__init__()
        self.listener = listener

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **kwargs) if kwargs else func(*args)
        name = _FUNCTIONS.get(func)
        if name is not None:
            self.listener(name, args, kwargs or {}, result)
        return result


def running(modules: Container[int]) -> nn.Module | None:
    """The innermost module that runs now, of those with these ids; None where none of them does.

    The calls of modules that have not ended are on the stack of Python. No hook is needed to follow them, which would
    cost every module of every model some time.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code is _CALL:
            module: nn.Module = frame.f_locals["self"]
            if id(module) in modules:
                return module
        frame = frame.f_back
    return None


class _Replacement:
    """The functions, replaced as long as somebody listens: for every thread, so all listeners share one replacement."""

    def __init__(self) -> None:
        self.listeners: list[Listener] = []
        self.lock = threading.Lock()
        self.before: list[Any] = []

    @contextmanager
    def telling(self, listener: Listener) -> Iterator[None]:
        """Tell one more listener inside the `with` block."""
        with self.lock:
            if not self.listeners:
                self.before = [getattr(owner, name) for owner, name in _PLACES]
                for (owner, name), function in zip(_PLACES, self.before, strict=True):
                    setattr(owner, name, self._replaced(name, function))
            self.listeners.append(listener)
        try:
            yield
        finally:
            with self.lock:
                self.listeners.remove(listener)
                if not self.listeners:
                    for (owner, name), function in zip(_PLACES, self.before, strict=True):
                        setattr(owner, name, function)

    def _replaced(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def tell(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            for listener in tuple(self.listeners):
                listener(name, args, kwargs, result)
            return result

        return tell


_replacement = _Replacement()
