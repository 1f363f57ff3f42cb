"""RWKV: the recurrences beside peers, their growth with the length, decoding, and a step beside an LSTM's.

    python benchmarks/rwkv.py                         every part
    python benchmarks/rwkv.py recurrence lengths      some parts
    PYTHONPATH=FOLDER python benchmarks/rwkv.py recurrence

    recurrence    4 texts of 4,096 tokens, 32 heads of 64, bfloat16, forward and backward: ours, the plain chunks,
                  `chunk_rwkv7` of flash-linear-attention where it can be imported, causal attention of the same width
    lengths       the same for one text of 1,024 to 131,072 tokens, ours and causal attention
    rwkv4         the recurrence of version 4: one text of 1,024 to 131,072 tokens, 2,048 channels, bfloat16, and 64
                  texts of 1,024 tokens, 64 channels, float32, as `regard compare --task` trains them; forward and
                  backward of the kernels, the scan in plain torch, causal attention of the same width
    blocks        version 7 with other sizes of our kernels, one change at a time, 4 × 4,096 and 1 × 16,384 tokens
    decoding      milliseconds of a token and bytes of the state of rwkv7-small and llama-small, after contexts of
                  1,024, 16,384 and 65,536 tokens
    step          a step on one core of a CPU, RWKV-4 and RWKV-7 beside an LSTM of equal width, in processor time

FOLDER has the packages flash_linear_attention, fla_core and einops, unpacked (`pip download --no-deps`, then unzip):
`build/peers` is ignored by git. `fla` tunes its kernels at the first call for a size, which is not timed. Without a GPU
the sizes are small, to see that everything runs; the step is measured on a CPU everywhere.
"""

import math
import time
from collections.abc import Callable

import torch
from timing import main, medians, table
from torch import Tensor
from torch.nn.functional import normalize, scaled_dot_product_attention

import regard
from regard.models.language import LanguageModel
from regard.recurrence.scan import Recurrence
from regard.rwkv import wkv
from regard.rwkv.time_mix import RWKV4, RWKV7

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ON_GPU = DEVICE == "cuda"
DTYPE = torch.bfloat16 if ON_GPU else torch.float32
ROWS, TOKENS, HEADS, WIDTH = (4, 4096, 32, 64) if ON_GPU else (1, 128, 2, 16)
LENGTHS = (1024, 4096, 16_384, 65_536, 131_072) if ON_GPU else (64, 128)
VERSION4_SIZES = (((64, 1024) if ON_GPU else (2, 128)) + (64, torch.float32),
                  *((1, tokens, HEADS * WIDTH, DTYPE) for tokens in LENGTHS))
"""Rows, tokens, channels and dtype."""
SCAN_MAX_NUMBERS = 1 << 28
"""The scan keeps about 28 numbers for each number of k: larger inputs are not timed."""
CONTEXTS = (1024, 16_384, 65_536) if ON_GPU else (16, 64)
WIDTHS, REPEATS = (256, 512, 768, 1024), 61
OTHER_BLOCKS: tuple[dict[str, int], ...] = (
    {"chunk": 64, "key_block": 32, "chunks_warps": 8, "values_warps": 8, "keys_warps": 8},
    {"chunk": 64, "key_block": 32}, {"key_block": 32, "keys_warps": 2}, {"keys_warps": 8}, {"chunks_warps": 8},
    {"values_warps": 8}, {"values_warps": 2}, {"registers": 168}, {"states_registers": 168}, {"stages": 3},
    {"stages": 3, "states_registers": 255}, {"value_block": 32, "states_warps": 8, "states_registers": 255})
Inputs = list[Tensor]


def drawn(rows: int, tokens: int, heads: int = HEADS) -> Inputs:
    """r, log w, k, v, c, a, (B, N, H, D) each: what a trained model might have."""
    r, w, k, v, c, a = (torch.randn(rows, tokens, heads, WIDTH, device=DEVICE) for _ in range(6))
    log_w = -math.exp(-0.5) * torch.sigmoid(w - 2.0)
    given = (r, log_w, k, v, normalize(c, dim=-1), torch.sigmoid(a))
    return [part.to(torch.float32 if number == 1 else DTYPE).requires_grad_() for number, part in enumerate(given)]


def ours(r: Tensor, log_w: Tensor, k: Tensor, v: Tensor, c: Tensor, a: Tensor) -> Tensor:
    """Our kernels on a GPU, plain chunks elsewhere."""
    return wkv.wkv7_chunked(wkv.WKV7Inputs(*(part.transpose(1, 2) for part in (r, log_w, k, v, c, a))))[0]


def plain(r: Tensor, log_w: Tensor, k: Tensor, v: Tensor, c: Tensor, a: Tensor) -> Tensor:
    """Chunks of 64 tokens in plain torch."""
    inputs = wkv.WKV7Inputs(*(part.transpose(1, 2) for part in (r, log_w, k, v, c, a)))
    return wkv.wkv7_chunked(inputs, chunk=64)[0]


def attention(r: Tensor, log_w: Tensor, k: Tensor, v: Tensor, c: Tensor, a: Tensor) -> Tensor:
    """Causal attention with as many heads of the same width."""
    query, key, value = (part.transpose(1, 2) for part in (r, k, v))
    return scaled_dot_product_attention(query, key, value, is_causal=True)


def peer() -> Callable[..., Tensor] | None:
    """`chunk_rwkv7` of flash-linear-attention, where it can be imported and there is a GPU."""
    if not ON_GPU:
        return None
    try:
        from fla.ops.rwkv7 import chunk_rwkv7
    except ImportError as error:
        print(f"flash-linear-attention cannot be imported: {error}")
        return None

    def theirs(r: Tensor, log_w: Tensor, k: Tensor, v: Tensor, c: Tensor, a: Tensor) -> Tensor:
        return chunk_rwkv7(r, log_w, k, v, -c, c * a)[0]

    return theirs


def trained(function: Callable[..., Tensor], inputs: Inputs) -> Callable[[], None]:
    """Forward and backward."""
    used = [part for number, part in enumerate(inputs) if function is not attention or number in (0, 2, 3)]

    def work() -> None:
        y = function(*inputs)
        torch.autograd.grad(y, used, torch.ones_like(y))

    return work


def recurrence() -> str:
    """Forward and backward of the recurrence, and the largest difference to the peer."""
    inputs, theirs = drawn(ROWS, TOKENS), peer()
    functions = {"ours": ours, "plain chunks": plain, "causal attention": attention,
                 **({} if theirs is None else {"flash-linear-attention": theirs})}
    times = medians({name: trained(function, inputs) for name, function in functions.items()}, device=DEVICE)
    rows = [[name, f"{taken:.2f}", f"{taken / times['ours']:.2f}"] for name, taken in times.items()]
    note = ""
    if theirs is not None:
        mine, other = ours(*inputs).float().transpose(1, 2), theirs(*inputs).float()
        difference = (mine - other).detach().abs().max().item()
        note = f"\n\nLargest difference to flash-linear-attention: {difference:.1e} of {float(mine.abs().max()):.1e}."
    about = f"{ROWS} × {TOKENS:,} tokens, {HEADS} heads of {WIDTH}, {str(DTYPE)[6:]}, forward and backward\n\n"
    return about + table(["recurrence", "ms", "ours = 1"], rows) + note


def lengths() -> str:
    """Time and memory of one text, by its length."""
    rows = []
    for tokens in LENGTHS:
        inputs = drawn(1, tokens)
        works = {name: trained(function, inputs) for name, function in (("ours", ours), ("attention", attention))}
        times = medians(works, device=DEVICE, repeats=7)
        if ON_GPU:
            torch.cuda.reset_peak_memory_stats()
            works["ours"]()
        memory = f"{torch.cuda.max_memory_allocated() / 2**30:.2f}" if ON_GPU else "-"
        rows.append([f"{tokens:,}", f"{times['ours']:.2f}", f"{1e3 * times['ours'] / tokens:.2f}", memory,
                     f"{times['attention']:.2f}"])
    return table(["tokens", "ours, ms", "µs per token", "GiB", "causal attention, ms"], rows)


def rwkv4() -> str:
    """Time and memory of version 4, by size."""
    rows = []
    for count, tokens, channels, dtype in VERSION4_SIZES:
        works = _version4_works(count, tokens, channels, dtype)
        times = medians(works, device=DEVICE, repeats=5)
        if ON_GPU:
            torch.cuda.reset_peak_memory_stats()
            works["ours"]()
        memory = f"{torch.cuda.max_memory_allocated() / 2**30:.2f}" if ON_GPU else "-"
        rows.append([f"{count} × {tokens:,}", f"{channels:,}", str(dtype)[6:], f"{times['ours']:.3f}",
                     f"{1e3 * times['ours'] / (count * tokens):.3f}", memory,
                     f"{times['scan']:.1f}" if "scan" in times else "-", f"{times['attention']:.3f}"])
    return table(["tokens", "channels", "dtype", "ours, ms", "µs per token", "GiB", "scan, ms", "causal attention, ms"],
                 rows)


def _version4_works(count: int, tokens: int, channels: int, dtype: torch.dtype) -> dict[str, Callable[[], None]]:
    """Forward and backward of our kernels (on a CPU the scan), of the scan, and of causal attention."""
    q, k, v = (torch.randn(count, tokens, channels, device=DEVICE, dtype=dtype, requires_grad=True) for _ in range(3))
    w = (-torch.exp(torch.linspace(-5.0, 3.0, channels, device=DEVICE))).requires_grad_()
    u = torch.zeros(channels, device=DEVICE, requires_grad=True)

    def mixed(function: Callable[..., tuple[Tensor, wkv.WKV4State]]) -> Callable[[], None]:
        def work() -> None:
            y = function(k, v, w, u)[0]
            torch.autograd.grad(y, [k, v, w, u], torch.ones_like(y))

        return work

    def attended() -> None:
        split = [part.unflatten(-1, (-1, WIDTH)).transpose(1, 2) for part in (q, k, v)]
        y = scaled_dot_product_attention(*split, is_causal=True)
        torch.autograd.grad(y, [q, k, v], torch.ones_like(y))

    scan = {"scan": mixed(wkv.wkv4_scan)} if k.numel() < SCAN_MAX_NUMBERS else {}
    return {"ours": mixed(wkv.wkv4), **scan, "attention": attended}


def blocks() -> str:
    """Forward and backward with other sizes of the kernels; the first row has those of `wkv7.BLOCKS`."""
    if not ON_GPU:
        return "The sizes of the kernels are timed on a GPU only."
    from regard.kernels import wkv7  # imports Triton

    kept, rows = wkv7.BLOCKS[DTYPE], []
    works = [trained(ours, drawn(ROWS, TOKENS)), trained(ours, drawn(1, ROWS * TOKENS))]
    for changes in ({}, *OTHER_BLOCKS):
        wkv7.BLOCKS[DTYPE] = kept._replace(**changes)
        times = [medians({"ours": work}, device=DEVICE, repeats=7)["ours"] for work in works]
        rows.append([", ".join(f"{name} {size}" for name, size in changes.items()) or "as they are",
                     *(f"{taken:.2f}" for taken in times)])
    wkv7.BLOCKS[DTYPE] = kept
    return table(["sizes", f"{ROWS} × {TOKENS:,} tokens, ms", f"1 × {ROWS * TOKENS:,} tokens, ms"], rows)


def decoding() -> str:
    """Time of a token and size of the state, after contexts of several lengths."""
    rows = []
    for recipe in ("rwkv7-small", "llama-small"):
        model = regard.build(recipe, vocab_size=300).to(DEVICE, DTYPE).eval()
        assert isinstance(model, LanguageModel)
        for context in CONTEXTS:
            rows.append([recipe, f"{context:,}", *_decoded(model, context)])
    return table(["model", "context", "ms per token", "bytes of the state"], rows)


@torch.inference_mode()
def _decoded(model: LanguageModel, context: int) -> list[str]:
    ids = torch.randint(300, (1, context), device=DEVICE)
    state = model.start(rows=1, capacity=context + 400)
    for part in ids.split(4096, 1):
        state = model.step(state, part).state
    held = [state]

    def work() -> None:
        for _ in range(10):
            held[0] = model.step(held[0], ids[:, :1]).state

    taken = medians({"step": work}, device=DEVICE, repeats=21)["step"] / 10
    size = sum(tensor.numel() * tensor.element_size() for tensor in _tensors(held[0].stack))
    return [f"{taken:.3f}", f"{size:,}"]


def _tensors(state: object) -> list[Tensor]:
    """All tensors of a state."""
    if isinstance(state, Tensor):
        return [state]
    parts = state if isinstance(state, tuple) else vars(state).values() if hasattr(state, "__dict__") else ()
    return [tensor for part in parts for tensor in _tensors(part)]


def step() -> str:
    """A step of one token on a CPU, with one thread: medians of its processor time."""
    threads, rows = torch.get_num_threads(), []
    torch.set_num_threads(1)
    for width in WIDTHS:
        for count in (1, 8):
            mixers = {"LSTM": Recurrence(width, cell="lstm"), "RWKV-4": RWKV4(width), "RWKV-7": RWKV7(width)}
            works = {name: _steps(mixer, width, count) for name, mixer in mixers.items()}
            times = medians(works, device="cpu", repeats=REPEATS, clock=time.thread_time)
            rows.append([str(width), str(count), *(f"{1e3 * times[name] / 20:.0f}" for name in mixers),
                         *(f"{times[name] / times['LSTM']:.2f}" for name in ("RWKV-4", "RWKV-7"))])
    torch.set_num_threads(threads)
    return table(["width", "rows", "LSTM, µs", "RWKV-4, µs", "RWKV-7, µs", "RWKV-4 / LSTM", "RWKV-7 / LSTM"], rows)


def _steps(mixer: Recurrence | RWKV4 | RWKV7, width: int, rows: int) -> Callable[[], None]:
    x, held = torch.randn(rows, 1, width), [mixer.start(rows)]

    def work() -> None:
        with torch.inference_mode():
            for _ in range(20):
                _, held[0] = mixer.step(x, held[0])

    return work


if __name__ == "__main__":
    main({"recurrence": recurrence, "lengths": lengths, "rwkv4": rwkv4, "blocks": blocks, "decoding": decoding,
          "step": step}, __doc__, __file__, DEVICE)
