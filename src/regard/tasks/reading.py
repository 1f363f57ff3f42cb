"""Tasks of models that read: `Filler` names hidden tokens, `Classifier` labels, `Embedder` gives a vector for a text.

They take text, ids or images, and give plain values. In front of a text stands the special id `first`, behind it
`separator`, for models that have them. Texts are read in batches of like lengths; what comes of one does not depend on
the others.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple, overload

import torch
from torch import Tensor

from regard import checks
from regard.data.images.scaling import scaled
from regard.data.tokenizer.contract import Tokenizer
from regard.decoding.rules import whole
from regard.models.contract import Memory
from regard.models.labels import Tagger
from regard.models.vision import ImageClassifier
from regard.tasks.blanks import SHOWN, with_blanks
from regard.tasks.readings import image, sequence
from regard.tasks.task import Ids, OneSided, check_lengths, room
from regard.tasks.texts import as_texts, in_batches, which

IMAGES = 256
"""Of a batch."""


class Guess(NamedTuple):
    """What may stand at a place, and how probable that is."""

    id: int
    probability: float


class Suggestion(NamedTuple):
    """The same with its text."""

    text: str
    probability: float
    id: int


class Filling(NamedTuple):
    """A text with its blanks filled in."""

    text: str
    """With the most probable token in each blank."""
    blanks: tuple[tuple[Suggestion, ...], ...]
    """For each blank what may stand there, the most probable first."""


class Label(NamedTuple):
    """A label, by its name or else its number, and how probable it is."""

    name: str
    probability: float


class Reader(OneSided):
    """What tasks that read text share."""

    def text_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """What the model reads of each text, as in training: a text that it has no positions for is cut."""
        rows, limit = self.text_tokenizer().encode_many(texts), room(self._encoder())
        most = None if limit is None else limit - len(self.framed([[]])[0])
        return self.framed([row[:most] for row in rows])

    def framed(self, rows: Ids) -> list[list[int]]:
        """The ids of texts, with what stands in front of a text and behind it."""
        before, behind = ([] if id_ is None else [id_] for id_ in (self.special.first, self.special.separator))
        return [[*before, *row, *behind] for row in rows]

    def _encoder(self) -> object:
        return getattr(self.model, "encoder", self.model)


class Filler(Reader):
    """A masked model: it says what stands where tokens are hidden."""

    @overload
    def fill(self, texts: str, *, count: int = 5) -> Filling: ...  # type: ignore[overload-overlap]
    @overload
    def fill(self, texts: Sequence[str], *, count: int = 5) -> list[Filling]: ...
    def fill(self, texts: str | Sequence[str], *, count: int = 5) -> Filling | list[Filling]:
        """A text with its blanks filled in, "The ___ sleeps.", or each of several; `count` suggestions a blank.

        A blank, three underscores, stands for one token of the tokenizer, which may be a word or a part of one.
        """
        given, tokenizer, mask = as_texts("texts", texts), self.text_tokenizer(), self.mask()
        rows = self.framed([with_blanks(tokenizer, text, mask) for text in given])
        check_lengths("texts", rows, room(self._encoder()))  # to cut one might take its blanks away
        for number, row in enumerate(rows):
            if mask not in row:
                raise checks.wrong("texts", f"texts with a blank, {SHOWN}", f"one without{which(number, rows)}")
        never = {*self.special.ids(), *range(tokenizer.size, self.vocabularies[0])}
        more = whole("count", count, 1) + len(never)  # so many are left when none of these is among them
        found = in_batches(rows, [*map(len, rows)], lambda some: self._guesses(some, more))
        self.tell(lambda: map(partial(sequence, self), rows, given))
        results = []
        for row, blanks in zip(rows, found, strict=True):
            kept = [[guess for guess in guesses if guess.id not in never][:count] for guesses in blanks]
            best = iter([guesses[0].id for guesses in kept])
            text = tokenizer.decode([next(best) if id_ == mask else id_ for id_ in row])
            results.append(Filling(text, tuple(tuple(_suggestion(tokenizer, guess) for guess in guesses)
                                               for guesses in kept)))
        return results[0] if isinstance(texts, str) else results

    def fill_ids(self, rows: Ids, *, count: int = 5) -> list[list[list[Guess]]]:
        """For each row, for each mask in it, the `count` most probable ids (or all there are), the best first."""
        found = self._guesses(rows, count)
        self.tell(lambda: map(partial(sequence, self), rows))
        return found

    @torch.inference_mode()
    def _guesses(self, rows: Ids, count: int) -> list[list[list[Guess]]]:
        mask, tokens = self.mask(), self.tokens(rows)
        probabilities = torch.softmax(self.model(tokens).float(), -1)
        best = probabilities.topk(min(whole("count", count, 1), probabilities.shape[-1]))
        return [[[Guess(*guess) for guess in zip(best.indices[b, n].tolist(), best.values[b, n].tolist(), strict=True)]
                 for n, id_ in enumerate(row) if id_ == mask] for b, row in enumerate(rows)]

    def mask(self) -> int:
        """The id that hides a token."""
        if self.special.mask is None:
            raise checks.wrong("special.mask", "an id, for a model that fills in", None)
        return self.special.mask


class Classifier(Reader):
    """A model that gives labels: to images, to sequences, or to every token of a sequence."""

    @overload
    def classify(self, given: str) -> list[Label]: ...  # type: ignore[overload-overlap]
    @overload
    def classify(self, given: Sequence[str] | Tensor) -> list[list[Label]]: ...
    def classify(self, given: str | Sequence[str] | Tensor) -> list[Label] | list[list[Label]]:
        """The labels of a text, the most probable first; or of each of several texts, or images.

        Images are (B, C, H, W), bytes from 0 to 255 or scaled as `regard.data.images.scaling` does. A text that is
        longer than the model has positions is read as far as they go, as in training.
        """
        if isinstance(self.model, Tagger):
            raise checks.wrong("model", "one that gives a label to a whole text", "a tagger",
                               "label_ids(...) gives the labels of its tokens.")
        if isinstance(given, Tensor):
            images = scaled(given) if given.dtype == torch.uint8 else given
            numbers = [*range(len(images))]
            found = in_batches(numbers, [1] * len(numbers), lambda some: [*self._image_labels(images[some])], IMAGES)
            self.tell(lambda: map(partial(image, self), images))
        else:
            self._check_reads_text("given")
            texts = as_texts("given", given)
            rows = self.text_ids(texts)
            found = in_batches(rows, [*map(len, rows)], self._labels)
            self.tell(lambda: map(partial(sequence, self), rows, texts))
        names = self.label_names()
        results = [[Label(names[index], value) for value, index in zip(*(part.tolist() for part in one.sort(
            descending=True, stable=True)), strict=True)] for one in found]
        return results[0] if isinstance(given, str) else results

    def label_ids(self, rows: Ids) -> list[Tensor]:
        """The probabilities of the labels for each sequence, (labels,); from a tagger for each token, (N, labels)."""
        found = self._labels(rows)
        self.tell(lambda: map(partial(sequence, self), rows))
        return found

    @torch.inference_mode()
    def _labels(self, rows: Ids) -> list[Tensor]:
        self._check_reads_text("rows")
        probabilities = torch.softmax(self.model(self.tokens(rows)).float(), -1)
        one_each = probabilities.dim() == 2
        return [given if one_each else given[:len(row)] for given, row in zip(probabilities, rows, strict=True)]

    def label_images(self, images: Tensor) -> Tensor:
        """The probabilities of the labels, (images, labels), for images (B, C, H, W)."""
        found = self._image_labels(images)
        self.tell(lambda: map(partial(image, self), images))
        return found

    @torch.inference_mode()
    def _image_labels(self, images: Tensor) -> Tensor:
        if not isinstance(self.model, ImageClassifier):
            raise checks.wrong("images", "ids, for a model of sequences", "images", "label_ids(...) takes them.")
        self.check_mode()
        if not isinstance(images, Tensor) or not images.is_floating_point():
            got = f"of {images.dtype}" if isinstance(images, Tensor) else checks.kind(images)[0]
            raise checks.wrong("images", "a tensor of floating-point numbers, scaled as in training", got)
        weight = next(self.model.parameters())
        return torch.softmax(self.model(images.to(weight)).float(), -1)

    def label_names(self) -> tuple[str, ...]:
        """The names of the labels; their numbers where they have none."""
        return tuple(map(str, range(self.config.labels))) if self.labels is None else self.labels  # type: ignore[union-attr]

    def _check_reads_text(self, argument: str) -> None:
        if isinstance(self.model, ImageClassifier):
            raise checks.wrong(argument, "images, for a model of images", "ids" if argument == "rows" else "text",
                               "label_images(...) takes them.")


class Embedder(Reader):
    """An encoder alone: it gives a vector for a text."""

    def embed(self, texts: str | Sequence[str]) -> Tensor:
        """A vector of length 1 for each text: (texts, D). Their dot products are cosines."""
        given = as_texts("texts", texts)
        rows = self.text_ids(given)
        if not rows:
            return next(self.model.parameters()).new_zeros(0, self.config.width)
        found = torch.stack(in_batches(rows, [*map(len, rows)], lambda some: [*self._vectors(some)]))
        self.tell(lambda: map(partial(sequence, self), rows, given))
        return found

    def embed_ids(self, rows: Ids) -> Tensor:
        """The mean of the states of each row, of length 1: (rows, D). Their dot products are cosines."""
        found = self._vectors(rows)
        self.tell(lambda: map(partial(sequence, self), rows))
        return found

    @torch.inference_mode()
    def _vectors(self, rows: Ids) -> Tensor:
        memory = self.model.encode(self.tokens(rows))  # type: ignore[operator]
        assert isinstance(memory, Memory)
        return torch.nn.functional.normalize(memory.mean(), dim=-1)


def _suggestion(tokenizer: Tokenizer, guess: Guess) -> Suggestion:
    """With the text of the token; with its name where it is no text by itself, such as a byte or a space."""
    text = tokenizer.decode([guess.id])
    shown = text if text.strip() and "\ufffd" not in text else tokenizer.pieces([guess.id])[0]
    return Suggestion(shown, guess.probability, guess.id)
