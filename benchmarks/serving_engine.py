"""The serving engine measured in process: many clients at once, beside one request at a time and the offline rate.

    python benchmarks/serving_engine.py                                    32 clients on the CPU, a small Transformer
    python benchmarks/serving_engine.py --model demo-model --clients 1 8 32 128
    python benchmarks/serving_engine.py --device cuda --dtype bfloat16     256 clients on a GPU

Each client submits a sentence, waits for its translation, and submits the next (a closed loop). Contestants take turns,
and medians over the rounds are compared:

    one at a time    `translator.translate(text)`, one text after another, in one thread
    N clients        `ServingEngine.submit([text], ...)` from N threads
    offline          `translator.translate(texts)` for all sentences in one call

A model is a folder, or a recipe, of which one of random weights is made that writes as many tokens as it reads
(`sized.py`). Tokens are those of the translations. Beside the seconds on the clock it prints the processor's: on a
machine with other work, requests per processor second are the fairer number.
"""

import argparse
import itertools
import os
import random
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import sized
import torch
from timing import hardware, table

import regard
from regard import Translator
from regard.data import phrasebook
from regard.data.tokenizer.interface import PairTokenizer
from regard.data.tokenizer.training import UnigramConfig, train_tokenizer
from regard.serving.engine import ServingEngine
from regard.tasks.search import Beam

RECIPES = ("transformer-small", "transformer")


@dataclass
class Measured:
    """What one contestant did in one round."""

    seconds: float
    processor_seconds: float
    tokens: int
    latencies: list[float] = field(default_factory=list)

    @property
    def requests(self) -> float:
        """Requests per second."""
        return len(self.latencies) / self.seconds

    def quantile(self, share: float) -> float:
        """Milliseconds within which this share of the requests was answered."""
        ordered = sorted(self.latencies)
        return 1e3 * ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def translator_of(model: str, device: str, dtype: torch.dtype) -> Translator:
    """The model in a folder, or one of random weights."""
    if Path(model).is_dir():
        found = regard.load(model, device=device)
        assert isinstance(found, Translator), "a model that translates"
    else:
        pairs = [(pair.source, pair.target) for pair in phrasebook.pairs(4000, seed=1)]
        one = train_tokenizer([text for pair in pairs for text in pair], UnigramConfig(vocab_size=2000)).tokenizer
        found = sized.translator(model, one.size, tokenizer=PairTokenizer(one, one))
    found.model.to(device=device, dtype=dtype)
    return found


def sentences_of(file: str | None, count: int) -> list[str]:
    """Lines of a file, or sentences of the phrasebook of mixed lengths."""
    if file is not None:
        return [line for line in Path(file).read_text(encoding="utf-8").splitlines() if line.strip()][:count]
    return [pair.source for pair in phrasebook.pairs(count, seed=5, split="test", clauses=(1, 3))]


class Deck:
    """The sentences in a random order, the same for all contestants of a round, dealt to any number of threads."""

    def __init__(self, texts: list[str], seed: int) -> None:
        self.texts, self.numbers = random.Random(seed).sample(texts, len(texts)), itertools.count()

    def deal(self) -> str:
        """The next sentence; after the last one the first."""
        return self.texts[next(self.numbers) % len(self.texts)]


def one_at_a_time(translator: Translator, texts: list[str], strategy: Beam, seconds: float, seed: int) -> Measured:
    """One text after another, by the plain call."""
    deck, latencies, tokens = Deck(texts, seed), list[float](), 0
    began, processor = time.perf_counter(), time.process_time()
    while time.perf_counter() - began < seconds:
        start = time.perf_counter()
        (found,) = translator.search([deck.deal()], strategy)
        latencies.append(time.perf_counter() - start)
        tokens += len(found.log_probabilities)
    return Measured(time.perf_counter() - began, time.process_time() - processor, tokens, latencies)


def offline(translator: Translator, texts: list[str], strategy: Beam) -> Measured:
    """All texts in one call."""
    began, processor = time.perf_counter(), time.process_time()
    found = translator.search(texts, strategy)
    seconds = time.perf_counter() - began
    return Measured(seconds, time.process_time() - processor, sum(len(one.log_probabilities) for one in found),
                    [seconds] * len(texts))


def served(engine: ServingEngine, texts: list[str], strategy: Beam, clients: int, seconds: float,
           seed: int) -> Measured:
    """Many clients in a closed loop, each in a thread. What is answered after the time is not counted."""
    deck, latencies, tokens, lock = Deck(texts, seed), list[float](), 0, threading.Lock()
    start = threading.Barrier(clients + 1)
    began = [0.0]

    def client() -> None:
        nonlocal tokens
        start.wait()
        while time.perf_counter() - began[0] < seconds:
            first = time.perf_counter()
            (found,) = engine.submit([deck.deal()], strategy).result()
            last = time.perf_counter()
            if last - began[0] < seconds:
                with lock:
                    latencies.append(last - first)
                    tokens += len(found.log_probabilities)

    threads = [threading.Thread(target=client) for _ in range(clients)]
    for one in threads:
        one.start()
    began[0], processor = time.perf_counter(), time.process_time()
    start.wait()
    time.sleep(max(0.0, seconds - (time.perf_counter() - began[0])))
    taken = time.process_time() - processor
    for one in threads:
        one.join()
    return Measured(seconds, taken, tokens, latencies)


def rows_of(results: dict[str, list[Measured]]) -> list[list[str]]:
    """A row for each contestant, with the medians of its rounds."""
    def middle(several: list[Measured], value: Any) -> float:
        return float(median(value(one) for one in several if one.latencies))

    single = middle(results["one at a time"], lambda one: one.tokens / one.seconds)
    rows = []
    for name, several in results.items():
        shares = [f"{middle(several, lambda one, share=share: one.quantile(share)):,.1f}" if name != "offline" else "-"
                  for share in (0.5, 0.95, 0.99)]
        per_processor = middle(several, lambda one: len(one.latencies) / max(1e-9, one.processor_seconds))
        tokens = middle(several, lambda one: one.tokens / one.seconds)
        requests = middle(several, lambda one: one.requests)
        rows.append([name, f"{tokens:,.0f}", f"{tokens / single:.2f}", f"{requests:,.1f}", f"{per_processor:,.1f}",
                     *shares])
    return rows


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="transformer-small", help=f"a folder, or one of {', '.join(RECIPES)}")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16", "float16"))
    parser.add_argument("--clients", type=int, nargs="+", help="default: 32 on the CPU, 256 on a GPU")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each contestant in each round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sentences", help="a file with a sentence in each line; default: the phrasebook")
    parser.add_argument("--count", type=int, default=1000, help="the number of sentences")
    parser.add_argument("--beams", type=int, default=5)
    given = parser.parse_args()
    clients = given.clients or [256 if given.device == "cuda" else 32]
    task = translator_of(given.model, given.device, getattr(torch, given.dtype))
    texts, strategy = sentences_of(given.sentences, given.count), Beam(beams=given.beams)
    results: dict[str, list[Measured]] = {"one at a time": [], **{f"{one} clients": [] for one in clients},
                                          "offline": []}
    with ServingEngine(task, max_queued=4 * max(clients)) as engine:
        task.search(texts[:64], strategy)
        for turn in range(-1, given.rounds):  # the first round warms up
            found = {"one at a time": one_at_a_time(task, texts, strategy, given.seconds, turn)}
            for one in clients:
                found[f"{one} clients"] = served(engine, texts, strategy, one, given.seconds, turn)
            found["offline"] = offline(task, texts, strategy)
            for name, measured in found.items() if turn >= 0 else ():
                results[name].append(measured)
        load = engine.load
    name = Path(given.model).name if Path(given.model).is_dir() else given.model
    print(f"{hardware(given.device)}, {os.cpu_count()} cores, {name}, {given.dtype}, {given.beams} beams, "
          f"{len(texts):,} sentences, medians of {given.rounds} rounds of {given.seconds:g} s")
    print(table(["", "tokens/s", "ratio", "requests/s", "requests/processor s", "p50 ms", "p95 ms", "p99 ms"],
                rows_of(results)))
    print(f"The engine ran {load.steps:,} steps in {load.seconds_busy:.1f} s.")


if __name__ == "__main__":
    main()
