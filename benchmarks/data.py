"""The data layer measured: pairs a second of reading, checking, tokenizing and batching, against `datasets` with
`tokenizers` doing the same work.

    python benchmarks/data.py                  every part
    python benchmarks/data.py read             one part: phrasebook, read, check, tokenize, batch or memory

The data are 100,000 pairs of the phrasebook in one TSV file. Theirs: `datasets` reads it into Arrow (without its
cache), a Python function filters by the same rules (empty, over-long, ratio, copies, duplicates), a unigram model of
`tokenizers` with 8,000 pieces tokenizes in batches, and batches are cut from the list sorted by length and padded. Ours
writes its tokens to a mapped store, theirs to Arrow in memory. Each is one process, with the threads it chooses itself.
"""

import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import islice
from pathlib import Path

import torch
from timing import main, table

from regard.data import phrasebook
from regard.data.batches.feed import BatchConfig, batch_feed
from regard.data.filters import FilterConfig, filter_pairs
from regard.data.sources.formats import read_pairs as open_pairs
from regard.data.sources.text import SentencePair
from regard.data.store import TokenStore, open_or_make_pairs
from regard.data.tokenizer.interface import Tokenizer
from regard.data.tokenizer.training import UnigramConfig, train_tokenizer

COUNT, VOCABULARY, TOKENS, BLOCK = 100_000, 8_000, 4_096, 1_000
PLACE = tempfile.TemporaryDirectory()
PEERS = all(importlib.util.find_spec(name) for name in ("datasets", "tokenizers"))


@cache
def corpus(count: int = COUNT) -> Path:
    """The pairs of the phrasebook as TSV."""
    path = Path(PLACE.name) / f"{count}.tsv"
    with path.open("w", encoding="utf-8") as file:
        file.writelines(f"{pair.source}\t{pair.target}\n" for pair in phrasebook.pairs(count))
    return path


@cache
def our_tokenizer() -> Tokenizer:
    """One unigram model for both sides."""
    found = list(open_pairs([corpus()]))[:20_000]
    texts = [side for pair in found for side in pair[:2]]
    return train_tokenizer(texts, UnigramConfig(vocab_size=VOCABULARY)).tokenizer


@cache
def their_tokenizer() -> object:
    """The same in tokenizers."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=VOCABULARY, special_tokens=["<unk>"], unk_token="<unk>",
                                      show_progress=False)
    found = list(open_pairs([corpus()]))[:20_000]
    tokenizer.train_from_iterator((side for pair in found for side in pair[:2]), trainer)
    return tokenizer


@cache
def their_dataset() -> object:
    """The file as Arrow."""
    import datasets

    datasets.disable_progress_bars()
    datasets.disable_caching()
    return datasets.load_dataset("csv", data_files=str(corpus()), delimiter="\t", column_names=["source", "target"],
                                 split="train", cache_dir=tempfile.mkdtemp(dir=PLACE.name), quoting=3)


def seconds(work: Callable[[], object], repeats: int = 3) -> float:
    """The median time of a work."""
    taken = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return sorted(taken)[len(taken) // 2]


def compared(name: str, ours: Callable[[], object], theirs: Callable[[], object]) -> str:
    """A table of both, in pairs a second."""
    ours_s = seconds(ours)
    rows = [["regard", f"{COUNT / ours_s:,.0f}", ""]]
    if PEERS:
        theirs_s = seconds(theirs)
        rows[0][2] = f"{theirs_s / ours_s:.1f}"
        rows.append(["datasets, tokenizers", f"{COUNT / theirs_s:,.0f}", "1.0"])
    return f"{name}\n\n" + table(["", "pairs/s", "speed"], rows)


def read() -> str:
    """Every pair of the file, once."""
    def ours() -> int:
        return sum(1 for _ in open_pairs([corpus()]))

    def theirs() -> int:
        their_dataset.cache_clear()
        return sum(len(block["source"]) for block in their_dataset().iter(BLOCK))  # type: ignore[attr-defined]

    return compared("read", ours, theirs)


def check() -> str:
    """What is kept of them."""
    def ours() -> int:
        return sum(1 for _ in filter_pairs(open_pairs([corpus()]), FilterConfig()))

    def theirs() -> int:
        seen: set[tuple[str, str]] = set()

        def good(source: list[str], target: list[str]) -> list[bool]:
            result = []
            for one, other in zip(source, target, strict=True):
                a, b = len(one.split()), len(other.split())
                fine = (bool(one.strip() and other.strip()) and max(a, b) <= 250 and max(a, b) <= 4 * min(a, b)
                        and one != other and (one, other) not in seen)
                seen.add((one, other))
                result.append(fine)
            return result

        their_dataset.cache_clear()
        return len(their_dataset().filter(good, input_columns=["source", "target"], batched=True))  # type: ignore[attr-defined]

    return compared("read and check", ours, theirs)


def tokenized(pairs: Iterable[SentencePair], tokenizer: Tokenizer) -> Iterator[tuple[list[int], list[int]]]:
    """Both sides of the pairs as ids, a block at a time."""
    walk = iter(pairs)
    while block := list(islice(walk, BLOCK)):
        yield from zip(*(tokenizer.encode_batch([pair[side] for pair in block]) for side in (0, 1)), strict=True)


def our_store() -> TokenStore:
    """The pairs as ids, in a store of their own."""
    folder = tempfile.mkdtemp(dir=PLACE.name)
    tokenizer = our_tokenizer()
    return open_or_make_pairs(Path(folder) / "store", "key", lambda: tokenized(open_pairs([corpus()]), tokenizer),
                              vocabularies=(tokenizer.size,) * 2).store


def their_ids() -> object:
    """The pairs as ids, in Arrow."""
    tokenizer = their_tokenizer()

    def encode(block: dict[str, list[str]]) -> dict[str, list[list[int]]]:
        return {side: [found.ids for found in tokenizer.encode_batch_fast(block[side])]  # type: ignore[attr-defined]
                for side in ("source", "target")}

    their_dataset.cache_clear()
    return their_dataset().map(encode, batched=True, batch_size=BLOCK, keep_in_memory=True)  # type: ignore[attr-defined]


def tokenize() -> str:
    """Text to ids, written down."""
    our_tokenizer()
    if PEERS:
        their_tokenizer()
    return compared("read, tokenize and store", our_store, their_ids)


def batch() -> str:
    """An epoch of padded batches of at most 4,096 tokens, from what is stored."""
    store, tokenizer = our_store(), our_tokenizer()
    ids = their_ids() if PEERS else None

    def ours() -> int:
        feed = batch_feed(store, tokenizer.special, BatchConfig(max_tokens=TOKENS), seed=1)
        return sum(feed.at(step).source.ids.shape[0] for step in range(feed.steps))

    def theirs() -> int:
        rows = ids.with_format("numpy")  # type: ignore[union-attr]
        lengths = [len(one) + len(other) + 1
                   for one, other in zip(ids["source"], ids["target"], strict=True)]  # type: ignore[index]
        order = sorted(range(len(lengths)), key=lengths.__getitem__)
        count, start = 0, 0
        while start < len(order):
            stop = start
            while stop < len(order) and (stop - start + 1) * lengths[order[stop]] <= TOKENS:
                stop += 1
            found = rows[order[start:max(stop, start + 1)]]
            for side in ("source", "target"):
                torch.nn.utils.rnn.pad_sequence([torch.as_tensor(row) for row in found[side]], batch_first=True)
            count += len(found["source"])
            start = max(stop, start + 1)
        return count

    return compared("an epoch of batches", ours, theirs)


def pairs_of_phrasebook() -> str:
    """Sentences that the grammar makes."""
    rows = []
    for split in ("train", "test"):
        taken = seconds(lambda split=split: sum(1 for _ in phrasebook.pairs(20_000, split=split)))
        rows.append([split, f"{20_000 / taken:,.0f}"])
    return "phrasebook\n\n" + table(["split", "pairs/s"], rows)


def memory() -> str:
    """The largest memory of a process that reads, checks, tokenizes and batches, for 10^4 and 10^6 pairs."""
    rows = []
    for count in (10_000, 1_000_000):
        result = subprocess.run([sys.executable, __file__, "--peak", str(count)], capture_output=True, text=True,
                                check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
        rows.append([f"{count:,}", result.stdout.strip().splitlines()[-1]])
    return "peak memory of the whole way\n\n" + table(["pairs", "MB"], rows)


def peak(count: int) -> None:
    """Walk the whole way in this process, and print its largest memory."""
    base = list(phrasebook.pairs(5_000))
    path = Path(PLACE.name) / "many.tsv"
    with path.open("w", encoding="utf-8") as file:
        for number in range(count):
            pair = base[number % len(base)]
            file.write(f"{number} {pair.source}\t{number} {pair.target}\n")
    tokenizer = train_tokenizer([side for pair in base for side in (pair.source, pair.target)],
                      UnigramConfig(vocab_size=2_000)).tokenizer

    store = open_or_make_pairs(Path(PLACE.name) / "store", "key",
                               lambda: tokenized(filter_pairs(open_pairs([path]), FilterConfig()), tokenizer),
                               vocabularies=(tokenizer.size,) * 2).store
    feed = batch_feed(store, tokenizer.special, BatchConfig(max_tokens=TOKENS), seed=1)
    for step in range(min(feed.steps, 2_000)):
        feed.at(step)
    # Not getrusage: its peak is inherited from the process that started this one.
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    print(f"{int(next(line for line in lines if line.startswith('VmHWM')).split()[1]) / 1024:,.0f}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--peak"]:
        peak(int(sys.argv[2]))
    else:
        main({"phrasebook": pairs_of_phrasebook, "read": read, "check": check, "tokenize": tokenize, "batch": batch,
              "memory": memory}, __doc__, __file__, "cpu")
