"""Tasks of models that read: `Filler` names hidden tokens, `Classifier` labels, `Embedder` gives a vector for a text.

They take ids, or images, and give plain values; what the ids mean is not known here.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from regard import checks
from regard.decoding.rules import whole
from regard.models.contract import Memory
from regard.models.vision import ImageClassifier
from regard.tasks.task import Ids, Task


class Guess(NamedTuple):
    """What may stand at a place, and how probable that is."""

    id: int
    probability: float


class Filler(Task):
    """A masked model: it says what stands where tokens are hidden."""

    @torch.inference_mode()
    def fill_ids(self, rows: Ids, *, count: int = 5) -> list[list[list[Guess]]]:
        """For each row, for each mask in it, the `count` most probable ids (or all there are), the best first."""
        if self.special.mask is None:
            raise checks.wrong("special.mask", "an id, for a model that fills in", None)
        tokens = self.tokens(rows)
        probabilities = torch.softmax(self.model(tokens).float(), -1)
        best = probabilities.topk(min(whole("count", count, 1), probabilities.shape[-1]))
        return [[[Guess(*guess) for guess in zip(best.indices[b, n].tolist(), best.values[b, n].tolist(), strict=True)]
                 for n, id_ in enumerate(row) if id_ == self.special.mask] for b, row in enumerate(rows)]


class Classifier(Task):
    """A model that gives labels: to images, to sequences, or to every token of a sequence."""

    @torch.inference_mode()
    def label_ids(self, rows: Ids) -> list[Tensor]:
        """The probabilities of the labels for each sequence, (labels,); from a tagger for each token, (N, labels)."""
        if isinstance(self.model, ImageClassifier):
            raise checks.wrong("rows", "images, for a model of images", "ids", "label_images(...) takes them.")
        probabilities = torch.softmax(self.model(self.tokens(rows)).float(), -1)
        one_each = probabilities.dim() == 2
        return [given if one_each else given[:len(row)] for given, row in zip(probabilities, rows, strict=True)]

    @torch.inference_mode()
    def label_images(self, images: Tensor) -> Tensor:
        """The probabilities of the labels, (images, labels), for images (B, C, H, W)."""
        if not isinstance(self.model, ImageClassifier):
            raise checks.wrong("images", "ids, for a model of sequences", "images", "label_ids(...) takes them.")
        self.check_mode()
        if not isinstance(images, Tensor) or not images.is_floating_point():
            got = f"of {images.dtype}" if isinstance(images, Tensor) else checks.kind(images)[0]
            raise checks.wrong("images", "a tensor of floating-point numbers, scaled as in training", got)
        weight = next(self.model.parameters())
        return torch.softmax(self.model(images.to(weight)).float(), -1)


class Embedder(Task):
    """An encoder alone: it gives a vector for a text."""

    @torch.inference_mode()
    def embed_ids(self, rows: Ids) -> Tensor:
        """The mean of the states of each row, of length 1: (rows, D). Their dot products are cosines."""
        memory = self.model.encode(self.tokens(rows))  # type: ignore[operator]
        assert isinstance(memory, Memory)
        return torch.nn.functional.normalize(memory.mean(), dim=-1)
