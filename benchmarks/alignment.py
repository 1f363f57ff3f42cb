"""How right the links are that are read off the attention of a model, and those of what mattered, on the phrasebook.

    python benchmarks/alignment.py                       trains a Transformer, an RNN and a convolution first
    python benchmarks/alignment.py MODEL --longest 8     a model of the phrasebook that is there, with its sentences

The place that the weights are read at is chosen from validation pairs without their links, as a training does. The
table has what else could have been chosen: its score, by which the choice is made, and the error rate, by which it is
not. The links of the phrasebook are used for nothing but the error rate. It needs some minutes for each model.

Influence is what leaving out a word changes. It is compared with the attention in two ways: by the error rate of the
links, and by the share of target words whose strongest source word is one that they are linked to.
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
    Alignment,
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
    "conv-tiny": {key: value for key, value in DEMO_CHANGES.items() if ".mixer." not in key},
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


def by_influence(task: Translator, pair: AlignedPair) -> Alignment:
    """The influence of the source words on each target word of the reference, as weights whose rows sum to 1.

    Unlike the shares of an `Influence`, rows that nothing in the source explains have weights too: gold links have no
    such threshold.
    """
    found = task.influence(pair.source, pair.target)
    supporting = found.values.clamp(min=0.0)
    weights = supporting / supporting.sum(dim=-1, keepdim=True).clamp(min=1e-9)
    words = [number for number, span in enumerate(found.target_spans) if span is not None]
    spans = [tuple(span for span in some if span is not None) for some in (found.word_spans, found.target_spans)]
    return Alignment(found.words, tuple(found.targets[number] for number in words), weights[words].float(), *spans)


def strongest_right(alignments: Sequence[Alignment], pairs: Sequence[AlignedPair]) -> tuple[float, int]:
    """In how many of the target words with links the source word of the largest weight is linked, and how many."""
    right = count = 0
    for one, pair in zip(alignments, pairs, strict=True):
        for target, span in enumerate(one.target_spans):
            gold = {source for source, other in pair.alignment if overlaps(pair.target_offsets[other], span)}
            if gold:
                best = one.source_spans[int(one.weights[target].argmax())]
                right += any(overlaps(pair.source_offsets[source], best) for source in gold)
                count += 1
    return right / count, count


def overlaps(one: tuple[int, int], other: tuple[int, int]) -> bool:
    """Whether two ranges of characters have one in common."""
    return one[0] < other[1] and other[0] < one[1]


def compare_influence(task: Translator, test: Sequence[AlignedPair], chosen: AlignmentConfig) -> None:
    """Print how right attention and influence are on the references."""
    task.aligned_by = chosen
    ways = {"attention": [task.aligned(pair.source, pair.target) for pair in test],
            "influence": [by_influence(task, pair) for pair in test]}
    print("| by | strongest word right | AER |\n|---|---|---|")
    for name, found in ways.items():
        share, count = strongest_right(found, test)
        links = [links_between(one, pair.source_offsets, pair.target_offsets)
                 for one, pair in zip(found, test, strict=True)]
        error = alignment_error_rate(links, [pair.alignment for pair in test])
        print(f"| {name} | {share:.1%} of {count:,} | {error:.1%} |")


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
    compare_influence(task, test, chosen)
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
    parser.add_argument("--recipe", choices=[*RECIPES], help="train this one only")
    asked = parser.parse_args()
    print(hardware("cuda" if torch.cuda.is_available() else "cpu"))
    for model in asked.models:
        task = regard.load(model)
        assert isinstance(task, Translator)
        report(model, task, asked.longest, asked.tested)
    if not asked.models:
        with tempfile.TemporaryDirectory() as place:
            for recipe in RECIPES if asked.recipe is None else [asked.recipe]:
                report(recipe, trained(recipe, Path(place), asked.pairs, asked.steps, asked.longest), asked.longest,
                       asked.tested)


if __name__ == "__main__":
    main()
