"""Attention that is not regard's, watched from outside: torch's, and models that call torch's fused kernel.

    torch.nn.MultiheadAttention       its inputs are kept, and projected when somebody asks
    scaled_dot_product_attention      its queries, keys and masks, in any module that calls it (Hugging Face: "sdpa")
    softmax of (B, H, n, N)           the weights themselves, where a module computes them ("eager")

No hook is put on any module, because torch leaves its fast paths where it finds one: a hook for all modules, which it
does not look for, sees those of torch. It does not know who keeps the looks.

Legend: B rows, H heads, n queries, N keys, E width, D width of a head.
"""

import inspect
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_modules

from regard.attention.look import Look
from regard.attention.mask import Allowed, Causal, Mask
from regard.inspection.matrix import Matrix
from regard.inspection.seen.keeping import Keeping
from regard.inspection.watching.calls import FUSED, SOFTMAX, by_mode, by_name, running
from regard.inspection.watching.multihead import inputs, look_of
from regard.inspection.watching.names import Place, foreign
from regard.inspection.watching.taps import watchable

KNOWN = "transformers"
"""The package whose modules import neither function under a name of their own."""


@contextmanager
def watching(modules: Mapping[str, nn.Module], keeping: Keeping, found: dict[str, Place]) -> Iterator[None]:
    """Keep what the attentions of a model, given as all its modules, look at; those that run are put into `found`."""
    names = {id(module): name for name, module in modules.items()}
    kinds = {type(module) for module in modules.values()}
    multihead = any(issubclass(kind, nn.MultiheadAttention) for kind in kinds)
    # A mode would keep torch's multi-head attention from its fast path.
    named = multihead or all(map(_calls_by_name, kinds))
    with ExitStack() as stack:
        if multihead:
            stack.enter_context(_held(_Multihead(names, keeping, found).hooks()))
        stack.enter_context((by_name if named else by_mode)(_Calls(names, keeping, found).called))
        yield


def _calls_by_name(kind: type[nn.Module]) -> bool:
    """Whether modules of a class look functions up by their names, and do not call softmax as a method of a tensor."""
    package = kind.__module__.partition(".")[0]
    code = getattr(inspect.unwrap(kind.forward), "__code__", None)
    return package == "torch" or (package == KNOWN and code is not None and SOFTMAX not in code.co_names)


@contextmanager
def _held(handles: list[Any]) -> Iterator[None]:
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
            # torch (2.13) forgets here that the hook took keywords, and would take it for one that is still there.
            torch_modules._global_forward_hooks_with_kwargs.pop(handle.id, None)


class _Multihead:
    """Watches torch.nn.MultiheadAttention, and the encoder layers of torch that run without calling theirs."""

    def __init__(self, names: dict[int, str], keeping: Keeping, found: dict[str, Place]) -> None:
        self.names, self.keeping, self.found = names, keeping, found
        self.called: set[int] = set()

    def hooks(self) -> list[Any]:
        """For all modules of all models; who made them removes them."""
        return [torch_modules.register_module_forward_hook(self.left, with_kwargs=True)]

    def left(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """A module of some model has run."""
        if id(module) not in self.names:
            return
        if isinstance(module, nn.MultiheadAttention):
            self.called.add(id(module))
            self._keep(module, *inputs(module, args, kwargs))
        elif isinstance(module, nn.TransformerEncoderLayer):
            own = module.self_attn
            if id(own) in self.called:
                self.called.discard(id(own))
            else:
                self._keep(own, *_fused(module, *args, **kwargs))

    def _keep(self, module: nn.MultiheadAttention, given: dict[str, Any], before: nn.Module | None = None) -> None:
        if not watchable(given["query"]):
            return
        name = foreign(self.names[id(module)], module)
        self.found.setdefault(name.name, name)
        weights = self.keeping.copied(module)
        norm = None if before is None else self.keeping.copied(before)
        self.keeping.later(name.name, given, lambda kept: look_of(weights, kept, norm))


def _fused(layer: nn.TransformerEncoderLayer, src: Tensor, src_mask: Tensor | None = None,
           src_key_padding_mask: Tensor | None = None,
           is_causal: bool = False) -> tuple[dict[str, Any], nn.Module | None]:
    """What the attention of an encoder layer reads whose fused form does not call it, and the norm before it."""
    given = {"query": src, "key": src, "attn_mask": src_mask, "key_padding_mask": src_key_padding_mask}
    return given, layer.norm1 if layer.norm_first else None


class _Calls:
    """Watches calls of scaled_dot_product_attention, and of softmax, by the modules in which they happen."""

    def __init__(self, names: dict[int, str], keeping: Keeping, found: dict[str, Place]) -> None:
        self.names, self.keeping, self.found = names, keeping, found
        self.known: dict[str, str] = {}

    def called(self, function: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Tensor) -> None:
        """One of both has been called by some module."""
        if function == FUSED:
            self._fused(*args, **kwargs)
        elif result.dim() == 4:
            self._weighed(result, kwargs.get("dim", args[1] if len(args) > 1 else None))

    def _name(self) -> str | None:
        """What the module is called that runs; None where it is none of the model's, or one that is kept whole."""
        module = running(self.names)
        if module is None or isinstance(module, nn.MultiheadAttention):
            return None
        path = self.names[id(module)]
        if path not in self.known:
            place = foreign(path, module)
            self.found[place.name] = place
            self.known[path] = place.name
        return self.known[path]

    def _fused(self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
               is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False) -> None:
        if query.dim() != 4 or not watchable(query):
            return
        name = self._name()
        if name is None:
            return
        n, N, D = query.shape[-2], key.shape[-2], query.shape[-1]
        mask: Mask | None = None
        bias = None
        if is_causal:  # aligned to the top left
            allowed = torch.ones(n, N, dtype=torch.bool, device=query.device).tril() if n != N else None
            mask = Causal() if allowed is None else Allowed(allowed)
        elif attn_mask is not None and attn_mask.dtype == torch.bool:
            mask = Allowed(attn_mask)
        elif attn_mask is not None:
            bias = attn_mask
        if scale is not None and scale != D**-0.5:
            query = query * (scale * D**0.5)
        self.keeping.take(name, Look(query, key, None, mask=mask, bias=bias))

    def _weighed(self, weights: Tensor, dim: int | None) -> None:
        if dim in (-1, 3) and watchable(weights):
            name = self._name()
            if name is not None:
                self.keeping.give(name, Matrix(weights))
