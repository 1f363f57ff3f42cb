"""What all tasks share: a model with its config, special ids and tokenizer, and the folder that holds all of it.

    task = regard.load("folder")      the task that fits the model
    task.model                        the bare module
    task.save("other")                config.toml, model.safetensors, tokenizer.*, README.md, manifest.json

A task without a tokenizer takes ids alone, and says so where it is given text. A task does not know how its model was
trained: what is told of that, its record, is kept and not read.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from regard import checks
from regard._version import __version__
from regard.data.tokenizer.contract import Tokenizer
from regard.data.tokenizer.pair import PairTokenizer
from regard.decoding.rules import as_ids
from regard.inspection.seen.again import Reading, Witnesses
from regard.models.build import ModelConfig
from regard.models.contract import Tokens
from regard.models.embedding import Embedding
from regard.models.special import SpecialConfig
from regard.storage import folder as folders
from regard.storage import weights
from regard.tasks import description
from regard.tasks.alignment.words import AlignmentConfig
from regard.tasks.card import card
from regard.tasks.texts import which

CONFIG, WEIGHTS, CARD = "config.toml", "model.safetensors", "README.md"
Ids = Sequence[Sequence[int]]
AnyTokenizer = Tokenizer | PairTokenizer


class Task:
    """A model ready for use: in evaluation mode, with all that is needed to use it.

    Args:
        model: the bare module.
        made_from: its config.
        special: its special ids; those of the tokenizer where not given.
        tokenizer: from text to ids: a PairTokenizer for a `Translator`, a Tokenizer for the others.
        labels: the names of the labels of a `Classifier`, in the order of its outputs.
        aligned_by: where a `Translator` reads which words belong together; it chooses in every sentence without it.
        record: tables that config.toml holds too: "data", "training", "scores", and "tokenizer", how that was made.
    """

    reads: ClassVar[type[Tokenizer] | type[PairTokenizer]] = Tokenizer
    """The kind of tokenizer that it takes."""
    aligns: ClassVar[bool] = False
    """Whether it tells which words belong together."""

    def __init__(self, model: nn.Module, made_from: ModelConfig, special: SpecialConfig | None = None, *,
                 tokenizer: AnyTokenizer | None = None, labels: Sequence[str] | None = None,
                 aligned_by: AlignmentConfig | None = None, record: Mapping[str, Any] | None = None) -> None:
        if special is not None and not isinstance(special, SpecialConfig):
            raise checks.wrong("special", "a SpecialConfig", *checks.kind(special))
        self.model, self.config = model.eval(), made_from
        self.special = _special(tokenizer) if special is None else special
        self.tokenizer = tokenizer
        self.labels = None if labels is None else tuple(labels)
        self.aligned_by = aligned_by
        self.record = description.checked(record)
        self.witnesses = Witnesses()
        """Those who are told what the model has read and written."""
        self._check_vocabulary()
        self._check_tokenizer()
        self._check_labels()
        self._check_alignment()

    def save(self, folder: str | Path) -> None:
        """Write the folder of this model. What regard saved there before is replaced; anything else is refused."""
        record, tokenizer = description.checked(self.record), self.tokenizer
        described = description.Description(self.config, self.special, self.labels,
                                            None if tokenizer is None else tokenizer.sha256, record, self.aligned_by)
        files: dict[str, folders.Content] = {
            CONFIG: described.text().encode(),
            WEIGHTS: partial(_write_weights, self.model),
            **({} if tokenizer is None else tokenizer.files()),
        }
        text = card(type(self).__name__, self.config, reads_text=tokenizer is not None, labels=self.labels,
                    record=record)
        folders.save(folder, files, editable={CARD: text.encode()})

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.model.parameters()).device

    @property
    def vocabularies(self) -> tuple[int, ...]:
        """How many ids the model reads, and where it is another number, how many it writes; none for images."""
        names = ("vocabulary", "source_vocabulary", "target_vocabulary")
        return tuple(getattr(self.config, name) for name in names if hasattr(self.config, name))

    def tokens(self, rows: Ids) -> Tokens:
        """Rows of ids as the model reads them."""
        self.check_mode()
        if not _is_sequence(rows):
            raise checks.wrong("rows", "sequences of ids, such as [[5, 6], [7]]", *checks.kind(rows))
        if not rows:
            raise checks.wrong("rows", "at least one sequence of ids", "none")
        for number, row in enumerate(rows):
            if not _is_sequence(row):
                raise checks.wrong("rows", "sequences of ids, such as [[5, 6], [7]]", f"{row!r:.80} in row {number}")
            as_ids("rows", row)
        padding = self.special.padding or 0
        if any(padding >= size for size in self.vocabularies):  # of the other side alone; none of them is looked at
            padding = 0
        return Tokens.of(rows, padding=padding).to(self.device)

    def tell(self, make: Callable[[], Iterable[Reading]]) -> None:
        """Tell those who watch what was read and written. Where nobody does, nothing is made."""
        for reading in make() if self.witnesses else ():
            for witness in (*self.witnesses,):
                witness(reading)

    def check_mode(self) -> None:
        """Refuse a model that was put into training mode, where dropout would make results a matter of chance."""
        if self.model.training:
            raise checks.wrong("model", "in evaluation mode", "in training mode", "Call task.model.eval() first.")

    def end(self) -> tuple[int, ...]:
        """The ids that end what a model writes."""
        if not self.special.end:
            raise checks.wrong("special.end", "an id, for a model that writes", "none")
        return self.special.end

    def needed(self) -> AnyTokenizer:
        """The tokenizer; a ValueError where there is none."""
        if self.tokenizer is None:
            remedy = ("This model has none: give ids, to a method whose name ends with _ids. The tokenizer.json of an "
                      "imported model is read where `tokenizers` is installed: pip install 'regard[import]'.")
            raise checks.wrong("tokenizer", "there, to read text", "missing", remedy)
        return self.tokenizer

    def _check_vocabulary(self) -> None:
        """Refuse special ids that the model does not have. What is written is of the last vocabulary."""
        sizes = self.vocabularies
        if not sizes:
            return
        written = (("start", self.special.start), *(("end", one) for one in self.special.end))
        for name, id_ in (*written, *((name, getattr(self.special, name)) for name in ("padding", "unknown", "mask",
                                                                                      "first", "separator"))):
            size = sizes[-1] if name in ("start", "end") else max(sizes)
            if id_ is not None and id_ >= size:
                raise checks.wrong(f"special.{name}", f"an id of the model, below {size}", id_)

    def _check_tokenizer(self) -> None:
        """Refuse a tokenizer of another model: ids that the model does not have, or text that gives special ids."""
        if self.tokenizer is None:
            if description.TOKENIZER in self.record:
                raise checks.wrong(f"record.{description.TOKENIZER}", "left out without a tokenizer", "given")
            return
        if not self.vocabularies:
            raise checks.wrong("tokenizer", "None, for a model of images", "given")
        if not isinstance(self.tokenizer, self.reads):
            expected = f"a {self.reads.__name__}, for a {type(self).__name__}"
            raise checks.wrong("tokenizer", expected, *checks.kind(self.tokenizer))
        sides = _sides(self.tokenizer)
        for one, size in zip(sides, self.vocabularies, strict=True):
            if one.size > size:
                raise checks.wrong("tokenizer", f"of at most {size:,} ids, those of the model", f"of {one.size:,}",
                                   "It is the tokenizer of another model.")
        apart = frozenset[int]().union(*(one.special.ids() for one in sides))
        if not self.special.ids() <= apart:
            raise checks.wrong("special", f"of the ids that no text gives, {sorted(apart)}", sorted(self.special.ids()))

    def _check_labels(self) -> None:
        count = getattr(self.config, "labels", None)
        if self.labels is None:
            return
        if count is None:
            raise checks.wrong("labels", f"None, for a {type(self).__name__}", "given")
        if len(self.labels) != count or not all(isinstance(name, str) for name in self.labels):
            got = f"{len(self.labels)}: {self.labels!r:.80}"
            raise checks.wrong("labels", f"{count} names, one for each label", got)

    def _check_alignment(self) -> None:
        if self.aligned_by is None:
            return
        if not self.aligns:
            raise checks.wrong("aligned_by", f"None, for a {type(self).__name__}", "given")
        if not isinstance(self.aligned_by, AlignmentConfig):
            raise checks.wrong("aligned_by", "an AlignmentConfig", *checks.kind(self.aligned_by))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.config.kind}, {self.config.parameters():,} parameters)"


class OneSided(Task):
    """A task of a model that reads or writes one kind of text."""

    def text_tokenizer(self) -> Tokenizer:
        """The tokenizer; a ValueError where there is none."""
        tokenizer = self.needed()
        assert isinstance(tokenizer, Tokenizer)
        return tokenizer


def room(part: object) -> int | None:
    """How many tokens an encoder or a decoder has positions for; None where there is no end."""
    embedding = getattr(part, "embedding", None)
    return embedding.limit if isinstance(embedding, Embedding) else None


def check_lengths(argument: str, rows: Ids, limit: int | None) -> None:
    """Refuse texts that are longer than the model has positions, by their number."""
    for number, row in enumerate(rows):
        if limit is not None and len(row) > limit:
            raise checks.wrong(argument, f"at most {limit} tokens long, the positions that the model knows",
                               f"{len(row)} tokens long{which(number, rows)}", "Cut it, or use a model with more.")


def _sides(tokenizer: AnyTokenizer) -> tuple[Tokenizer, ...]:
    return (tokenizer.source, tokenizer.target) if isinstance(tokenizer, PairTokenizer) else (tokenizer,)


def _special(tokenizer: AnyTokenizer | None) -> SpecialConfig:
    """The special ids of what is written."""
    return _sides(tokenizer)[-1].special if isinstance(tokenizer, AnyTokenizer) else SpecialConfig()


def _is_sequence(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _write_weights(model: nn.Module, path: Path) -> None:
    state: dict[str, Tensor] = model.state_dict()
    weights.write(path, state, {"regard": __version__})
