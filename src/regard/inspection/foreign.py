"""Record attention that is not regard's: PyTorch's own modules, and models that call PyTorch's functions.

    torch.nn.MultiheadAttention       its inputs are kept, and projected when a record is requested
    scaled_dot_product_attention      queries, keys and masks, in any module that calls it (Hugging Face: "sdpa")
    softmax of (B, H, n, N)           the weights themselves, where a module computes them (Hugging Face: "eager")

No hook is put on any single module, because PyTorch leaves its fast paths where it finds one; it does not look for a
global forward hook, which sees its modules. Calls of functions are seen in one of two ways. By name: the functions are
replaced where callers look them up, and everything else runs at full speed. By mode: a `TorchFunctionMode` sees every
call, also through an imported name or a tensor method, and each operation takes a few microseconds longer. Neither
changes a result.

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

from regard.attention.layer import split_heads
from regard.attention.look import Look
from regard.attention.mask import BoolMask, Causal, Mask
from regard.inspection.recorder import AttentionModule, Recorder, can_record, foreign_module
from regard.inspection.records import WeightMatrix

FUSED, SOFTMAX = "scaled_dot_product_attention", "softmax"
HUGGING_FACE = "transformers"
"""The package whose modules import neither function under another name."""
CallListener = Callable[[str, tuple[Any, ...], dict[str, Any], Any], None]
"""It gets the name of the function, its positional and keyword arguments, and its result."""
_LOOKUPS: tuple[tuple[Any, str], ...] = ((F, FUSED), (F, SOFTMAX), (torch, SOFTMAX))
"""Where callers find the functions. The tensor method is not replaced: a change of the class Tensor invalidates
Python's attribute caches, and everything that uses tensors is slower for a while."""
_FUNCTIONS = {F.scaled_dot_product_attention: FUSED, F.softmax: SOFTMAX, torch.softmax: SOFTMAX,
              Tensor.softmax: SOFTMAX}
_MODULE_CALL = nn.Module._call_impl.__code__


@contextmanager
def record_foreign(modules: Mapping[str, nn.Module], recorder: Recorder,
                   found: dict[str, AttentionModule]) -> Iterator[None]:
    """Record the attention of a model, given as all its modules; modules that run are added to `found`."""
    names = {id(module): name for name, module in modules.items()}
    classes = {type(module) for module in modules.values()}
    has_multihead = any(issubclass(kind, nn.MultiheadAttention) for kind in classes)
    # A mode would keep torch.nn.MultiheadAttention from its fast path.
    by_name = has_multihead or all(map(_calls_by_name, classes))
    calls = _FunctionCalls(names, recorder, found)
    with ExitStack() as stack:
        if has_multihead:
            stack.enter_context(_MultiheadHook(names, recorder, found).installed())
        stack.enter_context((listen_by_name if by_name else ListeningMode)(calls.handle))
        yield


def _calls_by_name(kind: type[nn.Module]) -> bool:
    """Whether modules of a class look functions up by their names, and do not call softmax as a tensor method."""
    package = kind.__module__.partition(".")[0]
    code = getattr(inspect.unwrap(kind.forward), "__code__", None)
    return package == "torch" or (package == HUGGING_FACE and code is not None and SOFTMAX not in code.co_names)


class _MultiheadHook:
    """Records torch.nn.MultiheadAttention, and encoder layers of PyTorch whose fused form does not call theirs."""

    def __init__(self, names: dict[int, str], recorder: Recorder, found: dict[str, AttentionModule]) -> None:
        self.names, self.recorder, self.found = names, recorder, found
        self.called: set[int] = set()

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Install the hook, for all modules of all models, inside the `with` block."""
        handle = torch_modules.register_module_forward_hook(self.after_forward, with_kwargs=True)
        try:
            yield
        finally:
            handle.remove()
            # PyTorch 2.13 does not remove this entry, and would call the next hook of this id with keywords.
            torch_modules._global_forward_hooks_with_kwargs.pop(handle.id, None)

    def after_forward(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """Record a module of this model that has run."""
        if id(module) not in self.names:
            return
        if isinstance(module, nn.MultiheadAttention):
            self.called.add(id(module))
            self._record(module, _multihead_inputs(args, kwargs))
        elif isinstance(module, nn.TransformerEncoderLayer):
            attention = module.self_attn
            if id(attention) in self.called:
                self.called.discard(id(attention))
            else:
                norm = module.norm1 if module.norm_first else None
                self._record(attention, _encoder_layer_inputs(*args, **kwargs), norm)

    def _record(self, module: nn.MultiheadAttention, inputs: dict[str, Any], norm: nn.Module | None = None) -> None:
        if not can_record(inputs["query"]):
            return
        described = foreign_module(self.names[id(module)], module)
        self.found.setdefault(described.name, described)
        module_copy = self.recorder.copy_parameter(module)
        norm_copy = None if norm is None else self.recorder.copy_parameter(norm)
        self.recorder.add_deferred(described.name, inputs, lambda kept: multihead_look(module_copy, kept, norm_copy))


def _multihead_inputs(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call of torch.nn.MultiheadAttention from which its weights are computed."""
    order = ("query", "key", "value", "key_padding_mask", "need_weights", "attn_mask")
    given = dict(zip(order, args, strict=False)) | kwargs
    return {name: given.get(name) for name in ("query", "key", "key_padding_mask", "attn_mask")}


def _encoder_layer_inputs(src: Tensor, src_mask: Tensor | None = None, src_key_padding_mask: Tensor | None = None,
                          is_causal: bool = False) -> dict[str, Any]:
    """The inputs of the attention of a torch.nn.TransformerEncoderLayer."""
    return {"query": src, "key": src, "attn_mask": src_mask, "key_padding_mask": src_key_padding_mask}


@torch.no_grad()
def multihead_look(module: nn.MultiheadAttention, inputs: dict[str, Any], norm: nn.Module | None = None) -> Look:
    """A look with the weights of torch.nn.MultiheadAttention, from its inputs; a pre-norm layer passes its `norm`.

    Its masks say which keys are hidden, or are added to the scores; both become masks and biases of regard. `bias_k`
    and `add_zero_attn` each append a key to those of the input.
    """
    query, key = inputs["query"], inputs["key"]
    padding, mask = inputs["key_padding_mask"], inputs["attn_mask"]
    same = query is key
    if query.is_nested:
        lengths = torch.tensor([len(one) for one in query.unbind()], device=query.device)
        query = key = torch.nested.to_padded_tensor(query, 0.0)
        padding = torch.arange(query.shape[1], device=query.device) >= lengths.unsqueeze(-1)
    if norm is not None:
        query = norm(query)
        key = query if same else norm(key)
    if query.dim() == 3 and not module.batch_first:
        query, key = query.transpose(0, 1), key.transpose(0, 1)
    query_weight, key_weight, query_bias, key_bias = _projections(module)
    q = split_heads(F.linear(query, query_weight, query_bias), module.num_heads)
    k = split_heads(F.linear(key, key_weight, key_bias), module.num_heads)
    if module.bias_k is not None:
        extra = split_heads(module.bias_k.reshape(1, -1), module.num_heads)
        k = torch.cat([k, extra.expand(*k.shape[:-2], 1, -1)], dim=-2)
    if module.add_zero_attn:
        k = F.pad(k, (0, 0, 0, 1))
    allowed, added = _multihead_masks(mask, padding, q, k.shape[-2] - key.shape[-2])
    return Look(q, k, None, mask=allowed, bias=added)


def _projections(module: nn.MultiheadAttention) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """The weights and biases that project queries and keys."""
    joint: Tensor | None = module.in_proj_weight
    biases: Tensor | None = module.in_proj_bias
    weights = (module.q_proj_weight, module.k_proj_weight) if joint is None else joint.chunk(3)[:2]
    query_bias, key_bias = (None, None) if biases is None else biases.chunk(3)[:2]
    return weights[0], weights[1], query_bias, key_bias


def _multihead_masks(mask: Tensor | None, padding: Tensor | None, q: Tensor,
                     extra_keys: int) -> tuple[Mask | None, Tensor | None]:
    """The mask and the bias of `attn_mask` and `key_padding_mask`; all queries may attend to the extra keys."""
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
            form = form != 0  # PyTorch converts boolean masks to floats
        if form.dtype == torch.bool:
            visible = BoolMask(F.pad(~form, (0, extra_keys), value=True))
            allowed = visible if allowed is None else allowed & visible
        else:
            bias = F.pad(form.to(q.dtype), (0, extra_keys))
            added = bias if added is None else added + bias
    return allowed, added


class _FunctionCalls:
    """Records calls of scaled_dot_product_attention and softmax by the module that makes them."""

    def __init__(self, names: dict[int, str], recorder: Recorder, found: dict[str, AttentionModule]) -> None:
        self.names, self.recorder, self.found = names, recorder, found
        self.known: dict[str, str] = {}

    def handle(self, function: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Tensor) -> None:
        """Record a call of one of the functions."""
        if function == FUSED:
            self._record_fused(*args, **kwargs)
        elif result.dim() == 4:
            self._record_softmax(result, kwargs.get("dim", args[1] if len(args) > 1 else None))

    def _caller(self) -> str | None:
        """The name of the module that runs; None for modules of other models, and for torch.nn.MultiheadAttention."""
        module = running_module(self.names)
        if module is None or isinstance(module, nn.MultiheadAttention):
            return None
        path = self.names[id(module)]
        if path not in self.known:
            described = foreign_module(path, module)
            self.found[described.name] = described
            self.known[path] = described.name
        return self.known[path]

    def _record_fused(self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
                      dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None,
                      enable_gqa: bool = False) -> None:
        if query.dim() != 4 or not can_record(query):
            return
        name = self._caller()
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
        self.recorder.add_look(name, Look(query, key, None, mask=mask, bias=bias))

    def _record_softmax(self, weights: Tensor, dim: int | None) -> None:
        if dim in (-1, 3) and can_record(weights):
            name = self._caller()
            if name is not None:
                self.recorder.add_weights(name, WeightMatrix(weights))


def running_module(modules: Container[int]) -> nn.Module | None:
    """The innermost running module of those with these ids; None if none of them runs.

    Module calls that have not returned are on Python's stack, so no hook is needed, which would cost time everywhere.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code is _MODULE_CALL:
            module: nn.Module = frame.f_locals["self"]
            if id(module) in modules:
                return module
        frame = frame.f_back
    return None


class ListeningMode(TorchFunctionMode):
    """Call a listener, inside the `with` block, after every call of the functions in this thread."""

    def __init__(self, listener: CallListener) -> None:
        super().__init__()
        self.listener = listener

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **kwargs) if kwargs else func(*args)
        name = _FUNCTIONS.get(func)
        if name is not None:
            self.listener(name, args, kwargs or {}, result)
        return result


class _PatchedFunctions:
    """The functions, replaced while there are listeners. A replacement acts in every thread, so there is only one."""

    def __init__(self) -> None:
        self.listeners: list[CallListener] = []
        self.lock = threading.Lock()
        self.originals: list[Any] = []

    @contextmanager
    def listening(self, listener: CallListener) -> Iterator[None]:
        """Call a listener inside the `with` block."""
        with self.lock:
            if not self.listeners:
                self.originals = [getattr(owner, name) for owner, name in _LOOKUPS]
                for (owner, name), function in zip(_LOOKUPS, self.originals, strict=True):
                    setattr(owner, name, self._wrap(name, function))
            self.listeners.append(listener)
        try:
            yield
        finally:
            with self.lock:
                self.listeners.remove(listener)
                if not self.listeners:
                    for (owner, name), function in zip(_LOOKUPS, self.originals, strict=True):
                        setattr(owner, name, function)

    def _wrap(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            for listener in tuple(self.listeners):
                listener(name, args, kwargs, result)
            return result

        return call


_patched = _PatchedFunctions()


def listen_by_name(listener: CallListener) -> AbstractContextManager[None]:
    """Call a listener, inside the `with` block, after every call of a function that is looked up by its own name."""
    return _patched.listening(listener)
