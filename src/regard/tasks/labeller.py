"""`Labeller` gives every token of a text a label: parts of speech, names, the secondary structure of a protein.

    labeller = regard.load("model")
    found = labeller("The cat sleeps.")      a Labelling
    found.labels                             ["DET", "NOUN", "VERB", "PUNCT"]
    found.tokens[1]                          TokenLabel("cat", "NOUN", 0.98, start=4, end=7)
    found.spans                              entities of an IOB scheme, or runs of equal labels

A token is a character or a word, as in the training data (`unit`). The label of a word is that of its first subword. A
text that is longer than the positions of the model is read in overlapping windows, and every token is labelled in the
window that has most context on its shorter side; models without a largest position read any text whole.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from regard import checks
from regard.data.sources.token_labels import UNITS, join_tokens
from regard.data.spans import find_runs, find_spans, is_span_scheme
from regard.data.tokenizer.interface import Span, check_text
from regard.data.tokenizer.units import EncodedTokens, TokenEncoder, overlapping_windows, token_spans
from regard.tasks.classifier import LabelTask
from regard.tasks.label_scores import merge_probabilities, parse_merge
from regard.tasks.task import map_batches, one_or_many

if TYPE_CHECKING:
    from regard.tasks.influence import Influence


class TokenLabel(NamedTuple):
    """A token, its most probable label, and the characters text[start:end] that it is."""

    token: str
    label: str
    probability: float
    start: int
    end: int

    def __repr__(self) -> str:
        return f"TokenLabel({self.token!r}, {self.label!r}, {self.probability:.4g}, start={self.start}, end={self.end})"


class LabelledSpan(NamedTuple):
    """Consecutive tokens that are one entity of an IOB scheme, or share a label."""

    label: str
    text: str
    start: int
    """The first character."""
    end: int
    probability: float
    """The mean of the probabilities of its labels."""


@dataclass(frozen=True)
class Labelling:
    """A text whose tokens have labels."""

    text: str
    tokens: tuple[TokenLabel, ...]
    unit: str
    """What a token is: "character" or "word"."""
    windows: int = 1
    """The number of windows that the text was read in; 1 if it was read whole."""
    scheme: bool = False
    """Whether the labels are those of an IOB scheme."""

    @property
    def labels(self) -> list[str]:
        """The label of each token."""
        return [token.label for token in self.tokens]

    @property
    def spans(self) -> list[LabelledSpan]:
        """The entities of an IOB scheme, by conlleval's rule; for other labels the runs of equal ones."""
        found, tokens = list[LabelledSpan](), self.tokens
        for label, first, end in (find_spans if self.scheme else find_runs)(self.labels):
            start, last = tokens[first].start, tokens[end - 1].end
            mean = sum(token.probability for token in tokens[first:end]) / (end - first)
            found.append(LabelledSpan(label, self.text[start:last], start, last, mean))
        return found

    def __str__(self) -> str:
        return join_labels(self.labels, self.unit)


def join_labels(labels: Sequence[str], unit: str) -> str:
    """Labels as one text, as in training data: side by side if they are single characters of characters."""
    return join_tokens(labels, unit if all(len(label) == 1 for label in labels) else "word")


class Labeller(LabelTask):
    """A model that gives every token of a text a label."""

    @property
    def unit(self) -> str:
        """What has a label: "character" or "word"."""
        unit = self.record.get("data", {}).get("label_unit", "word")
        return unit if unit in UNITS else "word"

    @property
    def splits_punctuation(self) -> bool:
        """Whether punctuation marks of a text are words of their own."""
        return self.record.get("data", {}).get("split_punctuation", True) is True

    @cached_property
    def encoder(self) -> TokenEncoder:
        """The encoder that turns tokens into ids."""
        return TokenEncoder(self.text_tokenizer(), self.unit)

    @one_or_many
    def label(self, texts: Sequence[str], *, tokenized: bool = False, merge: str | None = None,
              ensemble: "Sequence[Labeller]" = (), batch_tokens: int | None = None) -> list[Labelling]:
        """The labels of the tokens of a text, or of each of several texts.

        `labeller(texts)` is the same.

        Args:
            tokenized: whether the words of the texts are separated by spaces already, punctuation marks too.
            merge: groups of labels, such as "H=HGI,E=EB,C=*". Each token gets the most probable group; the probability
                of a group is the sum of those of its labels.
            ensemble: other models with the same labels. Each token gets the most probable label by the mean of the
                probabilities of all models.
            batch_tokens: the number of tokens of a batch, padding included.
        """
        split = self.splits_punctuation and not tokenized
        spans = [token_spans(text, self.unit, split_punctuation=split) for text in texts]
        return self._label([*texts], spans, merge, batch_tokens, ensemble)

    __call__ = label

    def label_tokens(self, sequences: Sequence[Sequence[str]], *, merge: str | None = None,
                     batch_tokens: int | None = None) -> list[Labelling]:
        """The labels of sequences of tokens, such as [["The", "cat"]]; of characters a text is such a sequence.

        Args:
            merge: groups of labels, as for `label`.
        """
        texts, spans = list[str](), list[list[Span]]()
        for number, tokens in enumerate(sequences):
            if isinstance(tokens, str) and self.unit == "word":
                raise checks.wrong(f"sequences[{number}]", "a list of words", "one text", "Use label(...) for texts.")
            for token in tokens:
                if not check_text(token, f"sequences[{number}]"):
                    raise checks.wrong(f"sequences[{number}]", "tokens that are not empty", "one that is")
            texts.append(join_tokens(tokens, self.unit))
            gap, at = 0 if self.unit == "character" else 1, 0
            spans.append([])
            for token in tokens:
                spans[-1].append(Span(at, at + len(token)))
                at += len(token) + gap
        return self._label(texts, spans, merge, batch_tokens)

    def label_probabilities(self, sequences: Sequence[Sequence[str]], *,
                            batch_tokens: int | None = None) -> list[Tensor]:
        """The probabilities of all labels for each token, (tokens, labels), on the CPU."""
        return [probabilities for probabilities, _ in self._token_probabilities(sequences, batch_tokens)]

    def influence(self, text: str, *, tokenized: bool = False,
                  words: Iterable[int | Sequence[int]] | None = None) -> "Influence":
        """How much each token of a text matters for the labels of the others.

        The model labels the text without each token; the difference of the log-probabilities of the labels is the
        influence of the token, in nats. A token that is left out has no label, so its value for its own is NaN.

        Args:
            tokenized: whether the words of the text are separated by spaces already, punctuation marks too.
            words: the numbers of the tokens that are left out, from 0, each alone; numbers in a tuple are left out
                together. By default all are left out; of more than 64, groups of neighbours.
        """
        from regard.tasks.influence import labelling_influence

        spans = token_spans(check_text(text), self.unit, split_punctuation=self.splits_punctuation and not tokenized)
        return labelling_influence(self, text, [text[span.start:span.end] for span in spans], spans, words)

    def unknown_tokens(self, text: str) -> list[str]:
        """The characters of a text, or its words, that the model does not know and reads as the unknown token."""
        return self.encoder.unknown([text[span.start:span.end] for span in token_spans(text, self.unit)])

    def token_ids(self, tokens: Sequence[str]) -> EncodedTokens:
        """The ids of tokens as the model reads them, with its special ids, and the index of each token's first id."""
        before, after = self.special_ids()
        ids, first = self.encoder.encode(tokens)
        return EncodedTokens([*before, *ids, *after], [at + len(before) for at in first])

    def check_ensemble(self, other: "Labeller", argument: str) -> None:
        """Refuse another model of an ensemble that has other labels than this one."""
        if (other.unit, sorted(other.label_names())) != (self.unit, sorted(self.label_names())):
            raise checks.wrong(argument, f"a model of {self.unit}s with the labels {', '.join(self.label_names())}",
                               f"one of {other.unit}s with {', '.join(other.label_names())}")

    def _label(self, texts: list[str], spans: Sequence[Sequence[Span]], merge: str | None,
               batch_tokens: int | None, ensemble: "Sequence[Labeller]" = ()) -> list[Labelling]:
        sequences = [[text[span.start:span.end] for span in own] for text, own in zip(texts, spans, strict=True)]
        labels, found = self.label_names(), list[Labelling]()
        scheme, unit = merge is None and is_span_scheme(labels), self.unit
        groups = {label: label for label in labels} if merge is None else parse_merge(merge).groups_of(labels)
        results = self._ensemble_probabilities(sequences, batch_tokens, ensemble)
        for text, own, tokens, (probabilities, windows) in zip(texts, spans, sequences, results, strict=True):
            names, merged = merge_probabilities(probabilities, labels, groups)
            best, numbers = (part.tolist() for part in merged.max(-1))
            labelled = (TokenLabel(token, names[number], value, *span)
                        for token, number, value, span in zip(tokens, numbers, best, own, strict=True))
            found.append(Labelling(text, tuple(labelled), unit, windows, scheme))
        self._notify_labelled(sequences, texts)
        return found

    def _ensemble_probabilities(self, sequences: Sequence[Sequence[str]], batch_tokens: int | None,
                                ensemble: "Sequence[Labeller]") -> list[tuple[Tensor, int]]:
        """The means of the probabilities of this model and others, and the largest number of windows."""
        for number, other in enumerate(ensemble):
            self.check_ensemble(other, f"ensemble[{number}]")
        results = self._token_probabilities(sequences, batch_tokens)
        for other in ensemble:
            order = [*map(other.label_names().index, self.label_names())]
            found = other._token_probabilities(sequences, batch_tokens)
            results = [(one + another[:, order], max(windows, more))
                       for (one, windows), (another, more) in zip(results, found, strict=True)]
        return [(one / (1 + len(ensemble)), windows) for one, windows in results]

    def _token_probabilities(self, sequences: Sequence[Sequence[str]],
                             batch_tokens: int | None) -> list[tuple[Tensor, int]]:
        """The label probabilities of the tokens of each sequence, and the number of windows that it was read in."""
        encoded = [self.encoder.encode(tokens) for tokens in sequences]
        limit, around = self.max_positions(), self.special_ids()
        room = None if limit is None else limit - sum(map(len, around))
        rows, owners = list[list[int]](), list[tuple[int, int, int]]()
        for number, (ids, first) in enumerate(encoded):
            for start, end in overlapping_windows(first, len(ids), room):
                rows.append([*around[0], *ids[first[start]:first[end] if end < len(first) else len(ids)], *around[1]])
                owners.append((number, start, end))
        found = map_batches(rows, [*map(len, rows)], self._row_probabilities, batch_tokens) if rows else []
        by_sequence: list[list[tuple[int, Tensor]]] = [[] for _ in sequences]
        for (number, start, end), probabilities in zip(owners, found, strict=True):
            first = encoded[number].first
            inside = [at - first[start] + len(around[0]) for at in first[start:end]]
            by_sequence[number].append((start, probabilities[inside]))
        labels = len(self.label_names())
        return [(_join_windows(windows, len(tokens), labels), max(1, len(windows)))
                for windows, tokens in zip(by_sequence, sequences, strict=True)]

    def _row_probabilities(self, rows: list[list[int]]) -> list[Tensor]:
        return [one.cpu() for one in self._probabilities(rows)]

    def _notify_labelled(self, sequences: Sequence[Sequence[str]], texts: Sequence[str]) -> None:
        """Tell observers that the model read these texts."""
        def replays() -> Any:
            from regard.tasks.traces import replay_labelled

            for tokens, text in zip(sequences, texts, strict=True):
                if tokens:
                    yield replay_labelled(self, tokens, text)

        self.notify(replays)


def _join_windows(windows: Sequence[tuple[int, Tensor]], tokens: int, labels: int) -> Tensor:
    """The probabilities (tokens, labels), each token from the window in which its shorter side is longest."""
    if len(windows) == 1:
        return windows[0][1]
    joined, context = torch.zeros(tokens, labels), torch.full((tokens,), -1.0)
    for start, probabilities in windows:
        count = len(probabilities)
        places = torch.arange(count, dtype=torch.float)
        before = torch.full((count,), torch.inf) if start == 0 else places
        after = torch.full((count,), torch.inf) if start + count == tokens else places.flip(0)
        own, inside = torch.minimum(before, after), slice(start, start + count)
        better = own > context[inside]
        joined[inside][better], context[inside][better] = probabilities[better], own[better]
    return joined
