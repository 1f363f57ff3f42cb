"""`Classifier` assigns labels to texts or images; `Embedder` computes a vector for a text.

Both read texts in batches of similar length; the result for one text does not depend on the others. `LabelTask` is what
a `Classifier` and a `Labeller`, which assigns labels to tokens, have in common.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, overload

import torch
from torch import Tensor

from regard import checks
from regard.models.contract import Memory
from regard.models.vision import ImageClassifier
from regard.tasks.task import EncoderTask, Ids, as_texts, map_batches

if TYPE_CHECKING:
    from regard.inspection.watch import Replay
    from regard.tasks.influence import Influence

IMAGE_BATCH_SIZE = 256


class Label(NamedTuple):
    """A label and its probability. A label without a name has its number as name."""

    name: str
    probability: float

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"Label({self.name!r}, {self.probability:.4g})"


class LabelTask(EncoderTask):
    """A model with labels: a `Classifier`, or a `Labeller`."""

    def label_ids(self, rows: Ids) -> list[Tensor]:
        """The label probabilities of each row, (labels,); from a tagger of each token, (N, labels)."""
        found = self._probabilities(rows)
        self._notify_sequences(rows)
        return found

    @torch.inference_mode()
    def _probabilities(self, rows: Ids) -> list[Tensor]:
        probabilities = torch.softmax(self.model(self.tokens(rows)).float(), -1)
        per_row = probabilities.dim() == 2
        return [one if per_row else one[:len(row)] for one, row in zip(probabilities, rows, strict=True)]

    def label_names(self) -> tuple[str, ...]:
        """The names of the labels, or their numbers."""
        return tuple(map(str, range(self.config.num_labels))) if self.labels is None else self.labels  # type: ignore[union-attr]


class Classifier(LabelTask):
    """A model that assigns labels to texts or images."""

    @overload
    def classify(self, given: str, *, batch_tokens: int | None = None  # type: ignore[overload-overlap]
                 ) -> list[Label]: ...
    @overload
    def classify(self, given: Sequence[str] | Tensor, *, batch_tokens: int | None = None) -> list[list[Label]]: ...
    def classify(self, given: str | Sequence[str] | Tensor, *,
                 batch_tokens: int | None = None) -> list[Label] | list[list[Label]]:
        """The labels of a text, the most probable first; or of each of several texts or images.

        `classifier(given)` is the same. Images are (B, C, H, W), bytes from 0 to 255 or scaled as `regard.data.images`
        does. A text beyond the positions of the model is truncated, as in training.

        Args:
            batch_tokens: the number of tokens of a batch of texts, padding included.
        """
        if isinstance(given, Tensor):
            from regard.data.images import scale_pixels

            images = scale_pixels(given) if given.dtype == torch.uint8 else given
            numbers = [*range(len(images))]
            found = map_batches(numbers, [1] * len(numbers), lambda some: [*self._image_probabilities(images[some])],
                                IMAGE_BATCH_SIZE)
            self._notify_images(images)
        else:
            self._check_reads_text("given")
            texts = as_texts("given", given)
            rows = self.encode_texts(texts)
            found = map_batches(rows, [*map(len, rows)], self._probabilities, batch_tokens)
            self._notify_sequences(rows, texts)
        names = self.label_names()
        results = [[Label(names[index], value) for value, index in zip(*(part.tolist() for part in one.sort(
            descending=True, stable=True)), strict=True)] for one in found]
        return results[0] if isinstance(given, str) else results

    __call__ = classify

    def _probabilities(self, rows: Ids) -> list[Tensor]:
        self._check_reads_text("rows")
        return super()._probabilities(rows)

    def influence(self, given: str | Tensor, label: str | None = None, *,
                  words: Iterable[int | Sequence[int]] | None = None) -> "Influence":
        """How much each word of a text, or each patch of an image, matters for the label.

        The model reads the text without each word, or the image with each patch in grey; the difference of the
        log-probabilities of the label is the influence, in nats.

        Args:
            given: a text, or an image (C, H, W) as for `classify`.
            label: the name of a label; by default the most probable one.
            words: the numbers of the words, or patches, that are left out, from 0, each alone; numbers in a tuple are
                left out together. By default all are left out; of more than 64, groups of neighbours.
        """
        from regard.tasks.influence import label_influence

        return label_influence(self, given, label, words)

    def label_images(self, images: Tensor) -> Tensor:
        """The label probabilities, (images, labels), of images (B, C, H, W)."""
        found = self._image_probabilities(images)
        self._notify_images(images)
        return found

    @torch.inference_mode()
    def _image_probabilities(self, images: Tensor) -> Tensor:
        if not isinstance(self.model, ImageClassifier):
            raise ValueError("This model reads text, not images. Use classify(texts) or label_ids(rows).")
        self.check_eval_mode()
        if not isinstance(images, Tensor) or not images.is_floating_point():
            got = f"of {images.dtype}" if isinstance(images, Tensor) else checks.kind(images)[0]
            raise checks.wrong("images", "a tensor of floating-point numbers, scaled as in training", got)
        weight = next(self.model.parameters())
        return torch.softmax(self.model(images.to(weight)).float(), -1)

    def _notify_images(self, images: Tensor) -> None:
        def replays() -> "Iterator[Replay]":
            from regard.tasks.traces import replay_image

            for image in images:
                yield replay_image(self, image)

        self.notify(replays)

    def _check_reads_text(self, argument: str) -> None:
        if isinstance(self.model, ImageClassifier):
            raise ValueError(f"This model reads images, but `{argument}` is {'ids' if argument == 'rows' else 'text'}. "
                             "Use classify(images) or label_images(images).")


class Embedder(EncoderTask):
    """An encoder that computes a vector for a text."""

    def embed(self, texts: str | Sequence[str], *, batch_tokens: int | None = None) -> Tensor:
        """A vector of length 1 for each text, (texts, D). Their dot products are cosines.

        `embedder(texts)` is the same.

        Args:
            batch_tokens: the number of tokens of a batch, padding included.
        """
        given = as_texts("texts", texts)
        rows = self.encode_texts(given)
        if not rows:
            return next(self.model.parameters()).new_zeros(0, self.config.width)
        found = torch.stack(map_batches(rows, [*map(len, rows)], lambda some: [*self._vectors(some)], batch_tokens))
        self._notify_sequences(rows, given)
        return found

    __call__ = embed

    def embed_ids(self, rows: Ids) -> Tensor:
        """The mean state of each row, scaled to length 1, (rows, D). Their dot products are cosines."""
        found = self._vectors(rows)
        self._notify_sequences(rows)
        return found

    @torch.inference_mode()
    def _vectors(self, rows: Ids) -> Tensor:
        memory = self.model.encode(self.tokens(rows))  # type: ignore[operator]
        assert isinstance(memory, Memory)
        return torch.nn.functional.normalize(memory.mean(), dim=-1)
