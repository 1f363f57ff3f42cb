"""Record attention that is not regard's: PyTorch's own modules, and models that call PyTorch's functions.

    torch.nn.MultiheadAttention       its inputs are kept, and projected when a record is asked for
    scaled_dot_product_attention      queries, keys and masks, in any module that calls it (Hugging Face: "sdpa")
    softmax of (B, H, n, N)           the weights themselves, where a module computes them (Hugging Face: "eager")

No hook is put on any single module, because PyTorch leaves its fast paths where it finds one; it does not look for a
global forward hook, which sees its modules. Calls of functions are seen in one of two ways. By name: the functions are
replaced where callers look them up, and everything else runs at full speed. By mode: a `TorchFunctionMode` sees every
call, also through an imported name or a tensor method, and each operation takes a few microseconds longer. Neither
changes a result. This file does not know who keeps the records.

Legend: B rows, H heads, n queries, N keys, E width, D width of a head.
"""

import functools
import inspect
import sys
import threading
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules import module as torch_modules
from torch.overrides import TorchFunctionMode

from regard.attention.look import Look
from regard.attention.mask import BoolMask, Causal, Mask
from regard.inspection.recorder import AttentionModule, Recorder, can_record, foreign_module
from regard.inspection.records import WeightMatrix

FUSED, SOFTMAX = "scaled_dot_product_attention", "softmax"
CallListener = Callable[[str, tuple[Any, ...], dict[str, Any], Any], None]
"""Told the name of the function, what it was given by place and by name, and its result."""

_LOOKUPS: tuple[tuple[Any, str], ...] = ((F, FUSED), (F, SOFTMAX), (torch, SOFTMAX))
"""Where callers find the functions. The method of tensors is none of them: where a class changes, Python forgets what
it knows of it, and all that uses tensors is slower for a while."""
_FUNCTIONS = {F.scaled_dot_product_attention: FUSED, F.softmax: SOFTMAX, torch.softmax: SOFTMAX,
              Tensor.softmax: SOFTMAX}
_MODULE_CALL = nn.Module._call_impl.__code__


def listen_by_name(listener: CallListener) -> AbstractContextManager[None]:
    """Tell a listener, inside the `with` block, of every call of a function that is found by its own name."""
    return _patched.telling(listener)


class ListeningMode(TorchFunctionMode):
    """Tell a listener, inside the `with` block, of every call in this thread."""

    def __init__(self, listener: CallListener) -> None:
        super().__init__()
        self.listener = listener

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **kwargs) if kwargs else func(*args)
        name = _FUNCTIONS.get(func)
        if name is not None:
            self.listener(name, args, kwargs or {}, result)
        return result


def running_module(modules: Container[int]) -> nn.Module | None:
    """The innermost module that runs now, of those with these ids; None where none of them does.

    The calls of modules that have not ended are on the stack of Python. No hook is needed to follow them, which would
    cost every module of every model some time.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code is _MODULE_CALL:
            module: nn.Module = frame.f_locals["self"]
            if id(module) in modules:
                return module
        frame = frame.f_back
    return None


class _PatchedFunctions:
    """The functions, replaced as long as somebody listens: for every thread, so all listeners share one replacement."""

    def __init__(self) -> None:
        self.listeners: list[CallListener] = []
        self.lock = threading.Lock()
        self.before: list[Any] = []

    @contextmanager
    def telling(self, listener: CallListener) -> Iterator[None]:
        """Tell one more listener inside the `with` block."""
        with self.lock:
            if not self.listeners:
                self.before = [getattr(owner, name) for owner, name in _LOOKUPS]
                for (owner, name), function in zip(_LOOKUPS, self.before, strict=True):
                    setattr(owner, name, self._replaced(name, function))
            self.listeners.append(listener)
        try:
            yield
        finally:
            with self.lock:
                self.listeners.remove(listener)
                if not self.listeners:
                    for (owner, name), function in zip(_LOOKUPS, self.before, strict=True):
                        setattr(owner, name, function)

    def _replaced(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def tell(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            for listener in tuple(self.listeners):
                listener(name, args, kwargs, result)
            return result

        return tell


_patched = _PatchedFunctions()


# ---- multihead: What a `torch.nn.MultiheadAttention` looks at, from its inputs: a `Look` with the same weights.
#
# Its masks say who may *not* attend, or are added; both forms are brought into those of regard. `bias_k` and
# `add_zero_attn` add a key each behind those of the input. It knows this one module, and does not run it.
#
# Legend: B rows, H heads, n queries, N keys, E width, D width of a head.


def multihead_inputs(module: nn.MultiheadAttention, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[dict[str, Any], None]:
    """The arguments of a call that say what is looked at, by name."""
    order = ("query", "key", "value", "key_padding_mask", "need_weights", "attn_mask")
    given = dict(zip(order, args, strict=False)) | kwargs
    return {name: given.get(name) for name in ("query", "key", "key_padding_mask", "attn_mask")}, None


@torch.no_grad()
def multihead_look(module: nn.MultiheadAttention, given: dict[str, Any], norm: nn.Module | None = None) -> Look:
    """The look of a call; `norm` is applied to the input first, where the layer around the module does so."""
    query, key = given["query"], given["key"]
    padding, mask = given["key_padding_mask"], given["attn_mask"]
    same = query is key
    if query.is_nested:
        lengths = torch.tensor([len(one) for one in query.unbind()], device=query.device)
        query = key = torch.nested.to_padded_tensor(query, 0.0)
        padding = torch.arange(query.shape[1], device=query.device) >= lengths.unsqueeze(-1)
    if norm is not None:
        query = norm(query)
        key = query if same else norm(key)
    batched = query.dim() == 3
    if batched and not module.batch_first:
        query, key = query.transpose(0, 1), key.transpose(0, 1)
    query_weight, key_weight, query_bias, key_bias = _projections(module)
    q = _split_heads(F.linear(query, query_weight, query_bias), module.num_heads)
    k = _split_heads(F.linear(key, key_weight, key_bias), module.num_heads)
    if module.bias_k is not None:
        own = _split_heads(module.bias_k.reshape(1, -1), module.num_heads)
        k = torch.cat([k, own.expand(*k.shape[:-2], 1, -1)], dim=-2)
    if module.add_zero_attn:
        k = F.pad(k, (0, 0, 0, 1))
    allowed, added = _masks(mask, padding, q, key.shape[-2], k.shape[-2])
    return Look(q, k, None, mask=allowed, bias=added)


def _projections(module: nn.MultiheadAttention) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Weights and biases of queries and keys."""
    together: Tensor | None = module.in_proj_weight
    biases: Tensor | None = module.in_proj_bias
    weights = (module.q_proj_weight, module.k_proj_weight) if together is None else together.chunk(3)[:2]
    query_bias, key_bias = (None, None) if biases is None else biases.chunk(3)[:2]
    return weights[0], weights[1], query_bias, key_bias


def _masks(mask: Tensor | None, padding: Tensor | None, q: Tensor, count: int,
           keys: int) -> tuple[Mask | None, Tensor | None]:
    """Who may attend, and what is added, for `count` keys of the input among all `keys`."""
    forms = []
    if mask is not None:
        if mask.dim() == 3 and q.dim() == 4:
            mask = mask.unflatten(0, (-1, q.shape[-3]))  # (B · H, n, N)
        forms.append(mask)
    if padding is not None:
        forms.append(padding[..., None, None, :] if padding.dim() == 2 else padding)
    allowed: Mask | None = None
    added: Tensor | None = None
    for form in forms:
        if form.is_floating_point() and bool(((form == 0) | (form == -torch.inf)).all()):
            form = form != 0  # torch makes numbers of flags
        if form.dtype == torch.bool:
            one = BoolMask(F.pad(~form, (0, keys - count), value=True))
            allowed = one if allowed is None else allowed & one
        else:
            more = F.pad(form.to(q.dtype), (0, keys - count))
            added = more if added is None else added + more
    return allowed, added


def _split_heads(projected: Tensor, heads: int) -> Tensor:
    """(..., N, E) -> (..., H, N, D)."""
    return projected.unflatten(-1, (heads, -1)).transpose(-3, -2)


# ---- foreign: Attention that is not regard's, watched from outside: torch's, and models that call torch's fused kernel.
#
#     torch.nn.MultiheadAttention       its inputs are kept, and projected when somebody asks
#     scaled_dot_product_attention      its queries, keys and masks, in any module that calls it (Hugging Face: "sdpa")
#     softmax of (B, H, n, N)           the weights themselves, where a module computes them ("eager")
#
# No hook is put on any module, because torch leaves its fast paths where it finds one: a hook for all modules, which it
# does not look for, sees those of torch. It does not know who keeps the looks.
#
# Legend: B rows, H heads, n queries, N keys, E width, D width of a head.

HUGGING_FACE = "transformers"
"""The package whose modules import neither function under a name of their own."""


@contextmanager
def record_foreign(modules: Mapping[str, nn.Module], keeping: Recorder, found: dict[str, AttentionModule]) -> Iterator[None]:
    """Keep what the attentions of a model, given as all its modules, look at; those that run are put into `found`."""
    names = {id(module): name for name, module in modules.items()}
    kinds = {type(module) for module in modules.values()}
    multihead = any(issubclass(kind, nn.MultiheadAttention) for kind in kinds)
    # A mode would keep torch's multi-head attention from its fast path.
    named = multihead or all(map(_calls_by_name, kinds))
    with ExitStack() as stack:
        if multihead:
            stack.enter_context(_removing(_MultiheadHook(names, keeping, found).hooks()))
        stack.enter_context((listen_by_name if named else ListeningMode)(_FunctionCalls(names, keeping, found).called))
        yield


def _calls_by_name(kind: type[nn.Module]) -> bool:
    """Whether modules of a class look functions up by their names, and do not call softmax as a method of a tensor."""
    package = kind.__module__.partition(".")[0]
    code = getattr(inspect.unwrap(kind.forward), "__code__", None)
    return package == "torch" or (package == HUGGING_FACE and code is not None and SOFTMAX not in code.co_names)


@contextmanager
def _removing(handles: list[Any]) -> Iterator[None]:
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
            # torch (2.13) forgets here that the hook took keywords, and would take it for one that is still there.
            torch_modules._global_forward_hooks_with_kwargs.pop(handle.id, None)


class _MultiheadHook:
    """Watches torch.nn.MultiheadAttention, and the encoder layers of torch that run without calling theirs."""

    def __init__(self, names: dict[int, str], keeping: Recorder, found: dict[str, AttentionModule]) -> None:
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
            self._keep(module, *multihead_inputs(module, args, kwargs))
        elif isinstance(module, nn.TransformerEncoderLayer):
            own = module.self_attn
            if id(own) in self.called:
                self.called.discard(id(own))
            else:
                self._keep(own, *_encoder_layer_inputs(module, *args, **kwargs))

    def _keep(self, module: nn.MultiheadAttention, given: dict[str, Any], before: nn.Module | None = None) -> None:
        if not can_record(given["query"]):
            return
        name = foreign_module(self.names[id(module)], module)
        self.found.setdefault(name.name, name)
        weights = self.keeping.copied(module)
        norm = None if before is None else self.keeping.copied(before)
        self.keeping.later(name.name, given, lambda kept: multihead_look(weights, kept, norm))


def _encoder_layer_inputs(layer: nn.TransformerEncoderLayer, src: Tensor, src_mask: Tensor | None = None,
           src_key_padding_mask: Tensor | None = None,
           is_causal: bool = False) -> tuple[dict[str, Any], nn.Module | None]:
    """What the attention of an encoder layer reads whose fused form does not call it, and the norm before it."""
    given = {"query": src, "key": src, "attn_mask": src_mask, "key_padding_mask": src_key_padding_mask}
    return given, layer.norm1 if layer.norm_first else None


class _FunctionCalls:
    """Watches calls of scaled_dot_product_attention, and of softmax, by the modules in which they happen."""

    def __init__(self, names: dict[int, str], keeping: Recorder, found: dict[str, AttentionModule]) -> None:
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
        module = running_module(self.names)
        if module is None or isinstance(module, nn.MultiheadAttention):
            return None
        path = self.names[id(module)]
        if path not in self.known:
            place = foreign_module(path, module)
            self.found[place.name] = place
            self.known[path] = place.name
        return self.known[path]

    def _fused(self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
               is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False) -> None:
        if query.dim() != 4 or not can_record(query):
            return
        name = self._name()
        if name is None:
            return
        n, N, D = query.shape[-2], key.shape[-2], query.shape[-1]
        mask: Mask | None = None
        bias = None
        if is_causal:  # aligned to the top left
            allowed = torch.ones(n, N, dtype=torch.bool, device=query.device).tril() if n != N else None
            mask = Causal() if allowed is None else BoolMask(allowed)
        elif attn_mask is not None and attn_mask.dtype == torch.bool:
            mask = BoolMask(attn_mask)
        elif attn_mask is not None:
            bias = attn_mask
        if scale is not None and scale != D**-0.5:
            query = query * (scale * D**0.5)
        self.keeping.take(name, Look(query, key, None, mask=mask, bias=bias))

    def _weighed(self, weights: Tensor, dim: int | None) -> None:
        if dim in (-1, 3) and can_record(weights):
            name = self._name()
            if name is not None:
                self.keeping.give(name, WeightMatrix(weights))
