"""How right the links are that are read off the attention of a model: the alignment error rate on the phrasebook.

    python benchmarks/alignment.py                       trains a Transformer and an RNN with attention first
    python benchmarks/alignment.py MODEL --longest 8     a model of the phrasebook that is there, with its sentences

The place that the weights are read at is chosen from validation pairs without their links, as a training does. The
table has what else could have been chosen: its score, by which the choice is made, and the error rate, by which it is
not. The links of the phrasebook are used for nothing but the error rate. It needs some minutes for each model.
"""

import argparse
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from timing import hardware

import regard
from regard.cli.demo import DEMO_CHANGES
from regard.data import phrasebook
from regard.data.phrasebook import AlignedPair
from regard.tasks.alignment import (
    AlignmentConfig,
    PairAttention,
    alignment_candidates,
    alignment_error_rate,
    link_log_probability,
    links_between,
    strongest_source_words,
)
from regard.tasks.translator import Translator
from regard.training import train
from regard.training.tasks.interface import TrainingRequest

RECIPES: Mapping[str, Mapping[str, Any]] = {
    "transformer-tiny": DEMO_CHANGES,
    "seq2seq-attention-tiny": {**{key: value for key, value in DEMO_CHANGES.items() if not key.startswith("model.")},
                               "model.dropout": 0.0},
}
SHOWN = 8


def trained(recipe: str, place: Path, pairs: int, steps: int, longest: int | None) -> Translator:
    """A model that has learned from sentences of the phrasebook."""
    files = {split: place / f"{recipe}-{split}.tsv" for split in ("train", "validation")}
    for split, count in (("train", pairs), ("validation", 200)):
        found = phrasebook.pairs(count, split=split, max_words=longest)
        files[split].write_text("".join(f"{pair.source}\t{pair.target}\n" for pair in found), encoding="utf-8")
    changes = {**RECIPES[recipe], "training.schedule.max_steps": steps, "training.batches.max_tokens": 1500,
               "training.validation.every": steps}
    train.train(TrainingRequest(task="seq2seq", data=(str(files["train"]),), validation=(str(files["validation"]),),
                      output=place / recipe, recipe=recipe, changes=changes))
    task = regard.load(place / recipe)
    assert isinstance(task, Translator)
    return task


def rate(task: Translator, pairs: Sequence[AlignedPair], where: AlignmentConfig | None) -> float:
    """The error rate on the references."""
    task.aligned_by = where
    found = [links_between(task.aligned(pair.source, pair.target), pair.source_offsets, pair.target_offsets)
             for pair in pairs]
    return alignment_error_rate(found, [pair.alignment for pair in pairs])


def own_rate(task: Translator, pairs: Sequence[AlignedPair], where: AlignmentConfig) -> tuple[float, int]:
    """That on the model's own translations, of those that are the reference, and how many these are."""
    task.aligned_by = where
    made = task.translate([pair.source for pair in pairs], beams=1, length_penalty="none")
    right = [number for number, one in enumerate(made) if one.text == pairs[number].target]
    aligned = task.align([pairs[number].source for number in right], [made[number] for number in right])
    found = [links_between(one, pairs[number].source_offsets, pairs[number].target_offsets)
             for number, one in zip(right, aligned, strict=True)]
    return alignment_error_rate(found, [pairs[number].alignment for number in right]), len(right)


def scored(looks: Sequence[PairAttention]) -> Iterator[tuple[float, AlignmentConfig]]:
    """All places with their scores."""
    tables: tuple[dict[str, int], dict[str, int]] = {}, {}
    numbers = [[np.array([table.setdefault(text[word.start:word.end].casefold(), len(table)) for word in words])
                for table, text, words in zip(tables, (one.text, one.translation), (one.source, one.target),
                                              strict=True)] for one in looks]
    sentences = np.repeat(np.arange(len(looks)), [len(target) for _, target in numbers])
    targets = np.concatenate([target for _, target in numbers])
    links = [strongest_source_words(one).numpy() for one in looks]
    for place, where in enumerate(alignment_candidates(*looks[0].cross.shape[:2])):
        sources = np.concatenate([source[link[place]] for (source, _), link in zip(numbers, links, strict=True)])
        yield link_log_probability(sources, targets, sentences), where


def report(name: str, task: Translator, longest: int | None, tested: int) -> None:
    """Everything about one model."""
    test = [*phrasebook.pairs(tested, split="test", max_words=longest)]
    held = [(pair.source, pair.target) for pair in phrasebook.pairs(500, split="validation", max_words=longest)]
    began = time.perf_counter()
    chosen = task.choose_alignment(held)
    seconds = time.perf_counter() - began
    print(f"\n{name}: chosen {_shown(chosen)} in {seconds:.1f} s")
    own, right = own_rate(task, test, chosen)
    print(f"AER {rate(task, test, chosen):.1%} on {len(test)} references, {own:.1%} on the {right} translations that "
          f"are the reference; {rate(task, test, None):.1%} where every sentence chooses its layer")
    target = task.pair_tokenizer().encode_targets([translation for _, translation in held])
    looks = [task._pair_attention([(text, ids)])[0] for (text, _), ids in zip(held, target, strict=True)]
    best = sorted(scored(looks), key=lambda one: -one[0])
    print("| layer | head | offset | rounds | score | AER |\n|---|---|---|---|---|---|")
    for score, where in [*best[:SHOWN], *best[-2:]]:
        head = "mean" if where.head is None else where.head
        print(f"| {where.layer} | {head} | {where.offset} | {where.rounds} | {score:.3f} | "
              f"{rate(task, test, where):.1%} |")


def _shown(where: AlignmentConfig) -> str:
    return (f"layer {where.layer}, {'the mean over heads' if where.head is None else f'head {where.head}'}, offset "
            f"{where.offset}, rounds {where.rounds}")


def main() -> None:
    """Measure the models that are named, or train some."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*")
    parser.add_argument("--longest", type=int, default=None, help="words of a source")
    parser.add_argument("--pairs", type=int, default=60_000, help="to learn from")
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--tested", type=int, default=300)
    asked = parser.parse_args()
    print(hardware("cuda" if torch.cuda.is_available() else "cpu"))
    for model in asked.models:
        task = regard.load(model)
        assert isinstance(task, Translator)
        report(model, task, asked.longest, asked.tested)
    if not asked.models:
        with tempfile.TemporaryDirectory() as place:
            for recipe in RECIPES:
                report(recipe, trained(recipe, Path(place), asked.pairs, asked.steps, asked.longest), asked.longest,
                       asked.tested)


if __name__ == "__main__":
    main()
