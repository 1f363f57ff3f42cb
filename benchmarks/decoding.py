"""Decoding measured: our searches against `transformers` generate and CTranslate2, with the same weights.

    python benchmarks/decoding.py                              all engines that are installed, on the CPU
    python benchmarks/decoding.py --device cuda --dtype bfloat16 --peers transformers
    python benchmarks/decoding.py --parts file --shape small   a file of 1,000 sentences by CTranslate2

One model of random weights that writes as many tokens as it reads (`sized.py`) is exported for all engines by our own
exporters. Sentences have the lengths of running text, about 25 tokens, at most 100, and are given as ids: batches of
one are some sentences one after another, a batch of 64 is one call. All rank by the sum of log-probabilities. They
take turns in one process; medians are compared. Before anything is timed: greedy outputs are compared in float32 where
no two tokens are as good as equal, and the scores of beams with those of forced decoding.

The second part is a file: texts in, texts out, by `regard.tasks.ctranslate2_engine` and by CTranslate2 called directly,
with sentencepiece around it, as its manual shows: all sentences in one call, which sorts and batches them.
"""

import argparse
import importlib.util
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import sized
import torch
from timing import Work, hardware, medians, rounds, table

from regard import Translator
from regard.tasks import ctranslate2_engine
from regard.tasks.export import describe_comparison, export, vocabulary_names
from regard.tokens import Tokens

RECIPES = {"base": ("transformer", 32_000), "small": ("transformer-small", 8000)}
OURS, THEIRS, C2, C2_INT8 = "regard", "transformers", "ctranslate2", "ctranslate2, int8"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
ROOM = 10
"""Tokens that a translation may have beyond its source."""
ALONE = 3
"""Sentences that are translated one after another, where batches are of one."""
NEAR = 1e-3
"""Two tokens whose logits differ by less are as good as equal."""
HANDS = {"32 sentences": (32, "examples"), "2,048 tokens": (2048, "tokens"), "4,096 tokens": (4096, "tokens")}
"""Batches of who calls CTranslate2 by hand, as it names them."""
Rows = list[list[int]]
Search = Callable[[Rows, int], Rows]
"""(sources of one batch, beams) -> what is written for each"""


def ours(task: Translator) -> Search:
    """Our searches."""
    def search(rows: Rows, beams: int) -> Rows:
        return [found[0].ids for found in task.translate_ids(rows, beams=beams, max_length=max(map(len, rows)) + ROOM)]

    return search


def theirs(folder: Path, device: str, dtype: torch.dtype) -> Search:
    """`generate`, as a user of it would call it."""
    from transformers import MarianMTModel
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    model = MarianMTModel.from_pretrained(folder, dtype=dtype).to(device).eval()
    never = [[sized.PADDING]] if model.config.decoder_start_token_id != sized.PADDING else None

    def search(rows: Rows, beams: int) -> Rows:
        given = Tokens.of(rows).to(device)
        there = (torch.arange(given.ids.shape[1], device=device) < given.lengths.unsqueeze(-1)).long()  # type: ignore[union-attr]
        with torch.inference_mode():
            found = model.generate(input_ids=given.ids, attention_mask=there, num_beams=beams, do_sample=False,
                                   length_penalty=0.0, max_new_tokens=max(map(len, rows)) + ROOM,
                                   forced_eos_token_id=None, bad_words_ids=never)
        return [_until_end(row[1:]) for row in found.tolist()]

    return search


def ctranslate2(task: Translator, folder: Path, device: str, compute: str) -> Search:
    """`translate_batch` on the ids of one batch."""
    import ctranslate2 as engine

    called = vocabulary_names(task)
    ids = {name: id_ for id_, name in enumerate(called.target)}
    model = engine.Translator(str(folder), device=device, compute_type=compute, inter_threads=1,
                              intra_threads=torch.get_num_threads())

    def search(rows: Rows, beams: int) -> Rows:
        found = model.translate_batch([[called.source[id_] for id_ in row] for row in rows], beam_size=beams,
                                      length_penalty=0.0, max_input_length=0, min_decoding_length=0,
                                      max_decoding_length=max(map(len, rows)) + ROOM, end_token=[sized.END],
                                      suppress_sequences=[[called.target[sized.PADDING]]])
        return [[ids[name] for name in one.hypotheses[0]] for one in found]

    return search


def _until_end(row: Sequence[int]) -> list[int]:
    return list(row[:row.index(sized.END)] if sized.END in row else row)


def contestants(task: Translator, asked: argparse.Namespace, place: Path) -> dict[str, Search]:
    """Every engine that is asked for and installed, with the weights of the task."""
    dtype, wanted = DTYPES[asked.dtype], asked.peers
    found = dict[str, Search]()
    if THEIRS in wanted and _installed("transformers"):
        print(f"export for transformers: {describe_comparison(export(task, 'huggingface', place / 'hf').comparison)}")
        found[THEIRS] = theirs(place / "hf", asked.device, dtype)
    if C2 in wanted and _installed("ctranslate2"):
        for name, compute in ((C2, "float32"), (C2_INT8, "int8")):
            folder = place / compute
            report = export(task, "ctranslate2", folder, quantization=compute)
            print(f"export for {name}: {describe_comparison(report.comparison)}")
            found[name] = ctranslate2(task, folder, asked.device, compute)
    return found


def _installed(package: str) -> bool:
    there = importlib.util.find_spec(package) is not None
    if not there:
        print(f"{package} is not installed, and is left out")
    return there


def check(task: Translator, others: dict[str, Search], rows: Rows, beams: Sequence[int]) -> None:
    """Stop where a result is not what it claims to be."""
    mine = task.translate_ids(rows, max_length=max(map(len, rows)) + ROOM)
    for name, search in others.items():
        if name == C2_INT8:
            continue
        parted = [(row, one[0].ids, other) for row, one, other in
                  zip(rows, mine, search(rows, 1), strict=True) if one[0].ids != other]
        gaps = [_gap(task, *each) for each in parted]
        print(f"greedy, {name}: the same in {len(rows) - len(parted)} of {len(rows)}"
              + (f", and parted where logits differ by at most {max(gaps):.1e}" if gaps else ""))
        if max(gaps, default=0.0) > NEAR:
            sys.exit("greedy outputs differ")
    for count in beams:
        found = task.translate_ids(rows, beams=count, max_length=max(map(len, rows)) + ROOM, length_penalty="mean")
        apart = max(abs(one[0].score - _forced(task, row, one[0].ids, one[0].end)) for row, one in
                    zip(rows, found, strict=True))
        print(f"beams {count}: scores and forced decoding differ by at most {apart:.1e}")
        if apart > 1e-4:
            sys.exit("scores are not those of forced decoding")


@torch.inference_mode()
def _logits(task: Translator, source: list[int], written: list[int]) -> torch.Tensor:
    memory = task.model.encode(task.tokens([source]))  # type: ignore[operator]
    return task.model.decode(task.tokens([[task.start_id(), *written]]), memory)[0].double()  # type: ignore[operator]


def _gap(task: Translator, source: list[int], mine: list[int], other: list[int]) -> float:
    """How far apart the logits are of the two tokens at which they part."""
    at = next((at for at, pair in enumerate(zip(mine, other, strict=False)) if pair[0] != pair[1]),
              min(len(mine), len(other)))
    first, second = (row[at] if at < len(row) else sized.END for row in (mine, other))
    logits = _logits(task, source, mine[:at])[-1]
    return abs(float(logits[first] - logits[second]))


def _forced(task: Translator, source: list[int], ids: list[int], end: int | None) -> float:
    """The mean of the log-probabilities of all tokens, read at once."""
    read = [*ids] if end is None else [*ids, end]
    logs = _logits(task, source, ids).log_softmax(-1)
    return float(logs[range(len(read)), read].mean())


@dataclass(frozen=True)
class Timed:
    """What all engines needed for the same sentences."""

    batch: int
    beams: int
    rows: Rows
    times: dict[str, float]
    """Milliseconds."""

    @property
    def tokens(self) -> int:
        """Of all sentences, which is as many as are written."""
        return sum(map(len, self.rows))


def speeds(asked: argparse.Namespace, searches: dict[str, Search], vocabulary: int) -> Iterator[Timed]:
    """Every batch and every number of beams that is asked for, one after another."""
    for batch in asked.batch:
        rows = sized.sources(max(batch, ALONE), vocabulary, length=asked.length)
        given = [rows] if batch > 1 else [[row] for row in rows]
        for beams in asked.beams:
            works: dict[str, Work] = {name: _all(search, given, beams) for name, search in searches.items()}
            yield Timed(batch, beams, rows, medians(works, device=asked.device, repeats=asked.repeats))


def speed(asked: argparse.Namespace, place: Path) -> str:
    """Sentences and tokens in a second, of ids."""
    recipe, vocabulary = RECIPES[asked.shape]
    task = sized.translator(recipe, vocabulary)
    others = contestants(task, asked, place)
    task.model.to(asked.device)
    if asked.check:
        check(task, others, sized.sources(16, vocabulary, seed=3), [5])
    task.model.to(DTYPES[asked.dtype])
    lines = []
    for one in speeds(asked, {OURS: ours(task), **others}, vocabulary):
        base = one.times.get(THEIRS)
        lines += [[str(one.batch), str(one.beams), name, f"{taken:,.0f}", f"{len(one.rows) / taken * 1e3:,.1f}",
                   f"{one.tokens / taken * 1e3:,.0f}", "" if base is None else f"{base / taken:.2f}",
                   f"{taken / one.times[OURS]:.2f}"] for name, taken in one.times.items()]
    header = ["batch", "beams", "engine", "ms", "sentences/s", "tokens/s", "speed against transformers",
              "time against regard"]
    return f"Transformer, {recipe}, vocabulary {vocabulary:,}, {asked.dtype}\n\n" + table(header, lines)


def _all(search: Search, batches: list[Rows], beams: int) -> Work:
    def work() -> None:
        for rows in batches:
            search(rows, beams)

    return work


def file(asked: argparse.Namespace, place: Path) -> str:
    """Texts in, texts out: the engine of `regard translate --engine ctranslate2`, and CTranslate2 by hand."""
    if not _installed("ctranslate2"):
        return "no file was translated"
    import ctranslate2 as package

    task, texts = _texting(asked)
    tokenizer = task.pair_tokenizer()
    cut, pieces, lines = tokenizer.source, tokenizer.target, []
    threads = len(os.sched_getaffinity(0))
    for compute in ("float32", "int8"):
        folder = place / f"file-{compute}"
        export(task, "ctranslate2", folder, quantization=compute)
        engine = ctranslate2_engine.CTranslate2Engine(task, folder, threads=threads, device=asked.device)
        for beams in asked.beams:
            works: dict[str, Work] = {OURS: lambda engine=engine, beams=beams: engine.translate(texts, beams=beams)}
            # One thread for each of several batches: several threads for one batch took twice to three times as long.
            hand = package.Translator(str(folder), device=asked.device, compute_type=compute, inter_threads=threads,
                                      intra_threads=1)
            for way in asked.by_hand:
                works[f"by hand, {way}"] = _by_hand(hand, cut, pieces, texts, tokenizer.source_end, beams, *HANDS[way])
            times = rounds(works, device="cpu", repeats=asked.repeats)
            lines += [[compute, str(beams), name, f"{median(taken):,.0f}", f"{len(texts) / median(taken) * 1e3:,.1f}",
                       "" if name == OURS else _faster(taken, times[OURS])] for name, taken in times.items()]
            print(*(" ".join(line) for line in lines[-len(times):]), sep="\n", file=sys.stderr, flush=True)
    return (f"A file of {len(texts):,} sentences, {asked.shape}, {asked.repeats} rounds\n\n"
            + table(["numbers", "beams", "engine", "ms", "sentences/s", "of regard's time, round by round"], lines))


def _faster(theirs: list[float], ours: list[float]) -> str:
    """How long others took for what took us 1, in the same round: the median and the range."""
    ratios = sorted(one / own for one, own in zip(theirs, ours, strict=True))
    return f"{median(ratios):.3f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"


def _by_hand(hand: Any, cut: Any, pieces: Any, texts: list[str], end: int, beams: int, size: int, kind: str) -> Work:
    def work() -> list[str]:
        given = [[*cut.pieces(ids), *cut.pieces([end])] for ids in cut.encode_batch(texts)]
        found = hand.translate_batch(given, beam_size=beams, max_batch_size=size, batch_type=kind, max_input_length=0,
                                     max_decoding_length=250)
        ids = {name: id_ for id_, name in enumerate(pieces.pieces(range(pieces.size)))}
        return [pieces.decode([ids[name] for name in one.hypotheses[0]]) for one in found]

    return work


def _texting(asked: argparse.Namespace) -> tuple[Translator, list[str]]:
    """A task with a tokenizer, and sentences of mixed lengths: of the phrasebook, several in one."""
    from regard.data import phrasebook
    from regard.data.tokenizer.interface import PairTokenizer
    from regard.data.tokenizer.training import UnigramConfig, train_tokenizer

    pairs = [(pair.source, pair.target) for pair in phrasebook.pairs(4000, seed=1)]
    one = train_tokenizer([text for pair in pairs for text in pair], UnigramConfig(vocab_size=2000)).tokenizer
    recipe, _ = RECIPES[asked.shape]  # with as many ids as there are tokens
    draw, texts = torch.Generator().manual_seed(1), []
    while len(texts) < asked.sentences:
        count = int(torch.randint(1, 8, (), generator=draw))
        texts.append(" ".join(source for source, _ in pairs[len(texts):len(texts) + count]))
    return sized.translator(recipe, one.size, tokenizer=PairTokenizer(one, one)), texts


PARTS = {"speed": speed, "file": file}


def main() -> None:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=[*PARTS])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    parser.add_argument("--shape", choices=RECIPES, default="base")
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 5])
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--peers", nargs="*", choices=(THEIRS, C2), default=[THEIRS, C2])
    parser.add_argument("--length", type=int, help="of all sentences, the end with it; of mixed lengths without")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--by-hand", nargs="+", choices=HANDS, default=[*HANDS], help="batches, for a file")
    parser.add_argument("--check", action=argparse.BooleanOptionalAction, default=True)
    asked = parser.parse_args()
    print(f"{hardware(asked.device)}\n`{' '.join(['python', 'benchmarks/decoding.py', *sys.argv[1:]])}`\n", flush=True)
    with tempfile.TemporaryDirectory() as name:
        for part in asked.parts:
            print(f"\n{PARTS[part](asked, Path(name))}\n", flush=True)


if __name__ == "__main__":
    torch.set_flush_denormal(True)
    main()
