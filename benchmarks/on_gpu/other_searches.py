"""Searches that the fused decoder step or the Triton kernels do not cover, timed on a GPU.

    python benchmarks/on_gpu/other_searches.py [--tiny] [--eager]

Other attention scores and normalisers, no-repeat n-grams, more than 16 beams, and a GPU without Triton, each with
batches of 1 and 64, in milliseconds per generated token; the first row is a search that they do cover. Every sentence
is written up to its maximum length, so the amount of work does not depend on the weights. `--eager` also times the
plain search. It imports nothing but torch and regard, so that it can time any version of regard:

    PYTHONPATH=OTHER_CHECKOUT/src python benchmarks/on_gpu/other_searches.py --eager
"""

import argparse
import importlib
import inspect
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

import torch

import regard

VOCABULARY, SOURCE, LIMIT = 32_000, 28, 32
ADDITIVE = {"decoder.mixer.score": "additive", "decoder.cross.score": "additive"}
SIGMOID = {"decoder.mixer.normalize": "sigmoid", "decoder.cross.normalize": "sigmoid"}
SEARCHES: dict[str, tuple[dict[str, str], dict[str, Any]]] = {
    "softmax of dot products (fused)": ({}, {}),
    "additive score": (ADDITIVE, {}),
    "sigmoid normaliser": (SIGMOID, {}),
    "no repeated 3-grams": ({}, {"no_repeat": 3}),
    "no Triton": ({}, {"triton": False}),
}
"""A name, changes of the recipe "transformer", and options of the search."""
PLAIN_SEARCHES = {"regard.decoding.steady": "why_not", "regard.decoding.graph_search": "why_no_graph_search",
                  "regard.decoding.gpu_search": "why_not"}
"""Functions that decide whether a search runs as CUDA graphs, in the versions that have them."""


def first_of(*places: tuple[str, str]) -> Any:
    """The first of these names, (module, name), that this version of regard has."""
    for module, name in places:
        try:
            return getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError):
            continue
    raise ImportError(f"none of {places} is in {regard.__file__}")


@contextmanager
def replaced(places: dict[str, str], value: Any) -> Iterator[None]:
    """Replace attributes of those modules that this version of regard has."""
    before = []
    for module, name in places.items():
        try:
            found = importlib.import_module(module)
        except ImportError:
            continue
        if hasattr(found, name):
            before.append((found, name, getattr(found, name)))
            setattr(found, name, value)
    try:
        yield
    finally:
        for found, name, old in before:
            setattr(found, name, old)


def milliseconds(model: Any, batch: int, beams: int, no_repeat: int | None, limit: int, repeats: int) -> float:
    """The median time of a search, per token of one sentence."""
    tokens, ngrams = (first_of(("regard.tokens", "Tokens"), ("regard.models.contract", "Tokens")),
                      first_of(("regard.decoding.constraints", "NoRepeatNgram"), ("regard.decoding.rules", "NoRepeat")))
    device = next(model.parameters()).device
    ids = torch.randint(5, VOCABULARY if limit == LIMIT else 100, (batch, SOURCE), device=device)
    constraints = [] if no_repeat is None else [ngrams(no_repeat)]
    options: dict[str, Any] = {"prompts": [[2]] * batch, "end": (), "max_length": limit, "constraints": constraints}
    if "limit" in inspect.signature(regard.greedy).parameters:  # older versions
        options["limit"], options["rules"] = options.pop("max_length"), options.pop("constraints")

    def search() -> None:
        with torch.inference_mode():
            memory = model.encode(tokens(ids))
            if beams == 1:
                regard.greedy(model, memory, **options)
            else:
                regard.beam(model, memory, beams=beams, **options)

    taken = []
    for turn in range(repeats + 3):
        begun = time.perf_counter()
        search()
        if device.type == "cuda":
            torch.cuda.synchronize()
        if turn >= 3:
            taken.append((time.perf_counter() - begun) * 1e3 / limit)
    return median(taken)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="sizes for a CPU, to see that everything runs")
    parser.add_argument("--eager", action="store_true", help="time the plain search beside each")
    parser.add_argument("--repeats", type=int, default=5)
    asked = parser.parse_args()
    device = "cpu" if asked.tiny else "cuda"
    warnings.simplefilter("ignore", FutureWarning)  # old names of config keys, which all versions read
    dtype = torch.float32 if asked.tiny else torch.bfloat16
    size = {"name": "transformer-tiny", "vocabulary": 100, "limit": 4} if asked.tiny else \
        {"name": "transformer", "vocabulary": VOCABULARY, "limit": LIMIT}
    machine = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    print(f"{machine}, torch {torch.__version__}, {regard.__file__}")
    print("| search | batch | beams | ms per token |" + (" eager | eager over it |" if asked.eager else ""))
    print("| --- | --- | --- | --- |" + (" --- | --- |" if asked.eager else ""), flush=True)
    for name, (changes, options) in [*SEARCHES.items(), ("20 beams", ({}, {"beams": 20}))]:
        torch.manual_seed(0)
        model = regard.build(size["name"], source_vocabulary=size["vocabulary"], target_vocabulary=size["vocabulary"],
                             **changes).eval().to(device, dtype)
        for batch in (1, 64) if not asked.tiny else (1, 2):
            for beams in (options["beams"],) if "beams" in options else (1, 5):
                given = (model, batch, beams, options.get("no_repeat"), size["limit"], asked.repeats)
                without = {} if options.get("triton", True) else {"regard.kernels": "TRITON",
                                                                  "regard.kernels.launch": "TRITON_FOUND"}
                with replaced(without, False):
                    cells = [milliseconds(*given)]
                if asked.eager:
                    with replaced(PLAIN_SEARCHES, lambda *given: "the plain search is timed"):
                        cells.append(milliseconds(*given))
                shown = [f"{cell:.2f}" for cell in cells] + ([f"{cells[1] / cells[0]:.1f}"] if asked.eager else [])
                print(f"| {name} | {batch} | {beams} | " + " | ".join(shown) + " |", flush=True)


if __name__ == "__main__":
    main()
