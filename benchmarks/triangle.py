"""Attention with a bias that rows share: time and memory of triangle attention, beside the plain computation and peers.

    python benchmarks/triangle.py                    every part
    python benchmarks/triangle.py attention layer    some parts
    python benchmarks/triangle.py --tiny             sizes for a CPU, to see that everything runs

    attention    N rows of N queries and N keys, 4 heads of 32, one bias (4, N, N): forward, and forward with backward
    layer        TriangleAttention (width 128) with its norm, projections and gate, the same
    accuracy     the error against float64, beside that of the plain computation in the same precision
    blocks       block sizes of each kernel, to choose them

Memory is the most that was allocated beyond the inputs and, with gradients, includes those of all inputs. The peers are
the plain computation (all N · 4 · N² weights at once), torch's scaled_dot_product_attention with the bias broadcast to
the rows, and `trifast` where it can be imported. A contestant that runs out of memory is listed as such. trifast tunes
its kernels at its first call for a size, which is not timed.
"""

import argparse
import importlib.util
import math
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import torch
from timing import hardware, medians, table
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import regard
from regard.models.protein import TriangleAttention

HEADS, WIDTH, PAIR_WIDTH = 4, 32, 128
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SIZES = (128, 256, 384, 512, 768, 1024) if DEVICE.type == "cuda" else (64, 128)
PRECISIONS = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
Attend = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def plain(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
    """The definition: all weights at once."""
    scores = query @ key.mT * query.shape[-1] ** -0.5 + bias
    return torch.softmax(scores, -1) @ value


def broadcast(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
    """torch's kernel with the bias as a mask, broadcast to the rows."""
    return scaled_dot_product_attention(query, key, value, bias.expand(len(query), *bias.shape))


def ours(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
    """`regard.attend`."""
    return regard.attend(query, key, value, bias=bias)


def contestants() -> dict[str, Attend]:
    """Each takes query, key, value (N rows, heads, N, width) and bias (heads, N, N)."""
    found: dict[str, Attend] = {"regard.attend": ours, "plain": plain, "torch sdpa": broadcast}
    if DEVICE.type == "cuda" and importlib.util.find_spec("trifast") is not None:
        from trifast import triangle_attention

        def trifast(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
            rows, _heads, n, _ = query.shape
            hidden = torch.zeros(1, rows, n, dtype=torch.bool, device=query.device)
            swapped = (t.transpose(0, 1).unsqueeze(0) for t in (query, key, value))
            return triangle_attention(*swapped, bias.unsqueeze(0), hidden).squeeze(0).transpose(0, 1)

        found["trifast"] = trifast
    return found


def inputs(n: int, dtype: torch.dtype) -> list[Tensor]:
    """Query, key and value as projections give them, (rows, heads, N, width), and the bias."""
    heads = [torch.randn(n, n, HEADS, WIDTH, device=DEVICE, dtype=dtype).transpose(1, 2) for _ in range(3)]
    return [t.requires_grad_() for t in (*heads, torch.randn(HEADS, n, n, device=DEVICE, dtype=dtype))]


def peak_mib(work: Callable[[], object]) -> float | None:
    """The most MiB that are allocated while `work` runs; None without a GPU."""
    if DEVICE.type != "cuda":
        return None
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    kept = work()
    torch.cuda.synchronize()
    del kept
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def measured(works: dict[str, Callable[[], object]], repeats: int) -> dict[str, tuple[float | None, float | None]]:
    """Milliseconds and MiB of each work; None where it ran out of memory (or memory is not measured)."""
    able, memory = {}, dict[str, float | None]()
    for name, work in works.items():
        try:
            work()  # compiles and tunes
            memory[name] = peak_mib(work)
            able[name] = work
        except torch.OutOfMemoryError:
            memory[name] = None
    times = medians(able, device=DEVICE.type, repeats=repeats) if able else {}
    return {name: (times.get(name), memory[name]) for name in works}


def shown(found: dict[str, tuple[float | None, float | None]], first: list[str]) -> list[list[str]]:
    base = next(iter(found.values()))[0]
    rows = []
    for name, (ms, mib) in found.items():
        ratio = "" if ms is None or base is None else f"{ms / base:.2f}"
        rows.append([*first, name, "out of memory" if ms is None else f"{ms:,.2f}", ratio,
                     "" if mib is None else f"{mib:,.0f}"])
    return rows


HEADER = ["N", "work", "who", "ms", "against regard", "MiB"]


def attention(sizes: tuple[int, ...], dtype: torch.dtype, repeats: int) -> str:
    """Attention by itself."""
    rows = []
    for n in sizes:
        tensors = inputs(n, dtype)
        above = torch.randn(n, n, HEADS, WIDTH, device=DEVICE, dtype=dtype).transpose(1, 2)
        calls = contestants()
        with torch.no_grad():
            rows += shown(measured({name: partial(call, *tensors) for name, call in calls.items()}, repeats),
                          [f"{n:,}", "forward"])
        rows += shown(measured({name: partial(both, call, tensors, above) for name, call in calls.items()}, repeats),
                      [f"{n:,}", "both"])
        say(rows[-2 * len(calls):])
    chosen = regard.explain(*inputs(max(sizes), dtype)[:3], bias=inputs(max(sizes), dtype)[3])
    return f"Attention, {HEADS} heads of {WIDTH}, {dtype}; {chosen.backend}: {chosen.detail}\n\n{table(HEADER, rows)}"


def both(call: Attend, tensors: list[Tensor], above: Tensor) -> tuple[Tensor, ...]:
    """Forward and backward."""
    return torch.autograd.grad(call(*tensors), tensors, above)


def layer(sizes: tuple[int, ...], dtype: torch.dtype, repeats: int) -> str:
    """The whole layer, starting and ending node, against the same layer with all weights at once."""
    rows = []
    for n, node in product(sizes, ("starting", "ending")):
        x = torch.randn(n, n, PAIR_WIDTH, device=DEVICE, dtype=dtype, requires_grad=True)
        works = {}
        for name, backend in (("regard", None), ("plain", "exact")):
            module = TriangleAttention(PAIR_WIDTH, node=node, heads=HEADS, head_width=WIDTH, backend=backend)
            module = module.to(DEVICE, dtype)
            works[name] = partial(train_step, module, x)
        rows += shown(measured(works, repeats), [f"{n:,}", node])
        say(rows[-2:])
    return f"TriangleAttention, width {PAIR_WIDTH}, {dtype}, forward and backward\n\n{table(HEADER, rows)}"


def train_step(module: torch.nn.Module, x: Tensor) -> None:
    """Forward and backward of a layer."""
    module(x).sum().backward()


def accuracy(sizes: tuple[int, ...], dtype: torch.dtype, repeats: int) -> str:
    """The largest error of output and gradients, against float64."""
    n, rows = min(sizes), []
    tensors = inputs(n, dtype)
    above = torch.randn(n, n, HEADS, WIDTH, device=DEVICE, dtype=dtype).transpose(1, 2)

    def results(call: Attend, given: list[Tensor]) -> list[Tensor]:
        output = call(*given)
        return [output.detach(), *torch.autograd.grad(output, given, above.to(output.dtype))]

    truth = results(plain, [t.detach().double().requires_grad_() for t in tensors])
    for name, call in contestants().items():
        errors = [float((got.double() - want).abs().max() / want.abs().max())
                  for got, want in zip(results(call, tensors), truth, strict=True)]
        rows.append([name, *(f"{error:.1e}" for error in errors)])
    return f"Relative error, N {n}, {dtype}\n\n" + table(["who", "output", "query", "key", "value", "bias"], rows)


def blocks(sizes: tuple[int, ...], dtype: torch.dtype, repeats: int) -> str:
    """The time of each kernel for each choice of block sizes, the fastest five."""
    if DEVICE.type != "cuda":
        return "Block sizes are measured on a GPU only."
    from triton.compiler.errors import CompilationError
    from triton.runtime.errors import OutOfResources

    from regard.kernels import launch, shared_bias

    n, lines = 512 if 512 in sizes else max(sizes), []
    tensors = inputs(n, dtype)
    above = torch.randn(n, n, HEADS, WIDTH, device=DEVICE, dtype=dtype).transpose(1, 2)
    kept = dict(shared_bias.BLOCKS)
    kernels = {"forward": shared_bias._forward, "query": shared_bias._query_gradient,
               "key": shared_bias._key_gradient, "bias": shared_bias._bias_gradient}
    for name, kernel in kernels.items():
        tried = list[tuple[float, tuple[int, ...]]]()
        for size_q, size_k, warps, stages in product((32, 64, 128), (32, 64, 128), (4, 8), (1, 2, 3, 4)):
            if size_q * size_k > 8192 * warps // 4:
                continue
            options = (size_q, size_k, warps, stages)
            shared_bias.BLOCKS[name] = {dtype.itemsize: ((WIDTH, options),)}
            try:
                tried.append((_kernel_ms(launch, kernel, tensors, above), options))
            except (OutOfResources, CompilationError, RuntimeError) as error:
                print(name, options, type(error).__name__, flush=True)
        shared_bias.BLOCKS[name] = kept[name]
        tried.sort(key=lambda pair: pair[0])
        lines += [[name, f"{ms:.3f}", *map(str, options)] for ms, options in tried[:5]]
        say(lines[-5:])
    return f"Block sizes, N {n}, {dtype}\n\n" + table(["kernel", "ms", "queries", "keys", "warps", "stages"], lines)


def _kernel_ms(launch: Any, wanted: Any, tensors: list[Tensor], above: Tensor) -> float:
    """The median milliseconds of one kernel of a forward and backward pass."""
    run, events = launch._run, list[tuple[Any, Any]]()

    def timed(kernel: Any, *given: Any) -> None:
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        run(kernel, *given)
        last.record()
        if kernel is wanted:
            events.append((first, last))

    launch._run = timed
    try:
        for _ in range(8):
            torch.autograd.grad(ours(*tensors), tensors, above)
    finally:
        launch._run = run
    torch.cuda.synchronize()
    times = sorted(first.elapsed_time(last) for first, last in events[2:])
    return times[len(times) // 2] if times else math.nan


def say(rows: list[list[str]]) -> None:
    """Print rows as soon as they are known."""
    for row in rows:
        print("  ", *row, flush=True)


PARTS = {"attention": attention, "layer": layer, "accuracy": accuracy, "blocks": blocks}


def main() -> None:
    """Run the parts that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="part", help=f"of {', '.join(PARTS)}; all where none is named")
    parser.add_argument("--tiny", action="store_true", help="sizes for a CPU, to see that everything runs")
    parser.add_argument("--sizes", type=int, nargs="+", metavar="N", help=f"residues; by default {SIZES}")
    parser.add_argument("--dtype", choices=PRECISIONS, default="bfloat16" if DEVICE.type == "cuda" else "float32")
    parser.add_argument("--repeats", type=int, default=11)
    asked = parser.parse_args()
    unknown = [part for part in asked.parts if part not in PARTS]
    if unknown:
        parser.error(f"unknown part {unknown[0]!r}: choose from {', '.join(PARTS)}")
    sizes = tuple(asked.sizes or ((24, 72) if asked.tiny else SIZES))
    torch.manual_seed(0)
    print(hardware(DEVICE.type), flush=True)
    for part in asked.parts or PARTS:
        print(f"\n{PARTS[part](sizes, PRECISIONS[asked.dtype], 3 if asked.tiny else asked.repeats)}", flush=True)


if __name__ == "__main__":
    main()
