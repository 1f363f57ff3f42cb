"""Chance that can be repeated: numbers that follow from a seed, from which try it is, and from how much is written.

Nothing is remembered between draws, so that what is drawn for a row depends on nothing but the row: not on its batch,
not on the device. The numbers are those of splitmix64 (Steele, Lea and Flood 2014), taken at a point that is mixed from
the seed, the try and the place. It knows neither tokens nor probabilities.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from regard.decoding.rules import whole

STEP, FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
WORD = 1 << 64


def row_seeds(seed: int, numbers: Iterable[int]) -> list[int]:
    """A seed for each row, from one for all of them and the numbers of the rows."""
    points = torch.tensor([_signed(whole("seed", seed))], dtype=torch.long)
    numbered = torch.tensor(list(numbers), dtype=torch.long)
    return [value % WORD for value in mixed(mixed(points) + numbered).tolist()]


def as_words(seeds: Iterable[int], device: torch.device) -> Tensor:
    """Seeds as 64-bit words on a device."""
    return torch.tensor([_signed(whole("seed", seed)) for seed in seeds], dtype=torch.long, device=device)


def uniform(seeds: Tensor, tries: Tensor, places: Tensor) -> Tensor:
    """Numbers from 0 to below 1, in steps of 2⁻⁵³ where the device has float64, else of 2⁻²⁴."""
    words = mixed(mixed(mixed(seeds) + tries) + places)
    bits, dtype = (24, torch.float32) if words.device.type == "mps" else (53, torch.float64)
    return _shifted(words, 64 - bits).to(dtype) * 2.0 ** -bits


def mixed(points: Tensor) -> Tensor:
    """The word of splitmix64 at each of these points: products and sums are taken modulo 2⁶⁴."""
    words = points + _signed(STEP)
    words = (words ^ _shifted(words, 30)) * _signed(FIRST)
    words = (words ^ _shifted(words, 27)) * _signed(SECOND)
    return words ^ _shifted(words, 31)


def _shifted(words: Tensor, bits: int) -> Tensor:
    """To the right, with zeros from the left: a shift of signed words would bring the sign."""
    return (words >> bits) & ((1 << (64 - bits)) - 1)


def _signed(word: int) -> int:
    """The number that has the same last 64 bits, as torch has them."""
    return (word + WORD // 2) % WORD - WORD // 2
