"""Alignments written by hand."""

import torch

from regard.data.tokenizer.interface import Word, find_units
from regard.tasks.alignment import Alignment


def aligned(source, target, links):
    """Of two texts, with links as programs write them: "0-0 1-2"."""
    sides = [[Word(*span, 0, 0) for span in find_units(text)] for text in (source, target)]
    weights = torch.zeros(len(sides[1]), len(sides[0]))
    for link in links.split():
        one, other = map(int, link.split("-"))
        weights[other, one] = 1.0
    return Alignment.of(source, sides[0], target, sides[1], weights)
