"""Influence: how much leaving out each word of the input changes the log-probability of each word of the output.

    I[t, s] = log p(y_t | x, y_<t) - log p(y_t | x without word s, y_<t)        in nats; positive: s supports t

    translator.influence("The two cats slept.")     words of the source on words of the translation
    completer.influence(completer("The two"))       words of the prompt on words of the continuation
    completer.influence("The two cats slept.")      words of a text on its later words
    classifier.influence(text), (image)             words, or patches that become grey, on the label
    labeller.influence("The two cats slept.")       tokens on the labels of the other tokens
    filler.influence("The ___ slept.")              words on what fills each blank

The output stays as it is: the model reads it once with the whole input and once without each word, n + 1 forced passes
in one batch. Attention says where a model looks; this says what would change. The words are those of alignments. The
ids of a word are removed from the input, so that nothing else is tokenized differently. A text of more than MAX_GROUPS
words is left out in groups of neighbours, which the argument `words` refines: `words=found.groups[3]` leaves out each
word of a group alone, `words=[(0, 1), (2, 3)]` leaves out pairs.

Leaving out has limits: what remains may be ungrammatical, which has an effect of its own, and of two words that say the
same each alone seems to have none.

Legend: n tokens of the output, M groups of words that are left out together, V vocabulary or labels.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from regard import checks
from regard.data.tokenizer.interface import Span, Word, check_text
from regard.decoding.forced import forced
from regard.inspection.trace import Trace
from regard.inspection.trace_format import TracedInfluence, TraceSide
from regard.inspection.watch import patch_side
from regard.models.vision import PatchEmbedding
from regard.tasks.classifier import IMAGE_BATCH_SIZE, Classifier
from regard.tasks.completer import Completer, Completion
from regard.tasks.filler import Filler
from regard.tasks.labeller import Labeller
from regard.tasks.search import generated_words
from regard.tasks.task import MAX_BATCH_TOKENS, Ids, Task, TextTask, check_lengths, map_batches, max_positions
from regard.tasks.translator import Translation, Translator

MAX_GROUPS = 64
"""The number of words, or of groups of words, that are left out one after another by default."""
MIN_EFFECT = 0.15
"""A word without any value of at least this size, in nats, has no effect."""
MIN_ROW_SUM = 0.3
"""A row whose positive values sum to no more than this, in nats, has no shares: nothing in the input explains it."""
MAX_LOGITS = 1 << 26
"""The number of logits of a batch, 256 MiB: it limits batches where the vocabulary is large."""
GREY = 0.0
"""What the pixels of a patch become: the middle of the range from -1 to 1."""
TRACE_DECIMALS = 4
Groups = tuple[tuple[int, ...], ...]
WordChoice = Iterable[int | Sequence[int]] | None
"""The words that are left out: the number of one, or the numbers of several that are left out together; None for all.
"""
ResultT = TypeVar("ResultT")


@dataclass(frozen=True, eq=False, repr=False)
class Influence:
    """How much leaving out each word of the input changes the log-probability of each word of the output."""

    targets: tuple[str, ...]
    """The words of the output, and its end token; or labels."""
    words: tuple[str, ...]
    """The words of the input; groups of neighbouring words in a long text; patches of an image."""
    values: Tensor
    """(targets, words), in nats: positive where the word supports the target, NaN where it is not defined."""
    groups: Groups
    """For each column the numbers of the words that were left out together, from 0."""
    target_spans: tuple[Span | None, ...]
    """The characters of each target in the output; None for an end token."""
    word_spans: tuple[Span | None, ...]
    """The characters of each word, or group of words, in the input; None for patches."""

    @classmethod
    def of(cls, rows: TraceSide, columns: TraceSide, tokens: Groups, values: Tensor) -> "Influence":
        """The influence between two sides, from values (n, M) of the tokens of the output.

        Args:
            tokens: for each column the tokens of the input that were left out together.
        """
        targets, target_spans, word_values = list[str](), list[Span | None](), list[Tensor]()
        for first, last, word in _units(rows):
            value = values[first:last + 1]
            defined = ~value.isnan()
            if word is None and tokens and not defined.any():  # a special token before the text
                continue
            word_values.append(torch.where(defined.any(dim=0), value.nansum(dim=0), torch.nan))
            targets.append(rows.tokens[first] if word is None else (rows.text or "")[word.start:word.end])
            target_spans.append(None if word is None else Span(word.start, word.end))
        named = [_column(columns, some) for some in tokens]
        stacked = torch.stack(word_values) if word_values else values.new_zeros(0, len(tokens))
        return cls(tuple(targets), tuple(one.name for one in named), stacked, tuple(one.words for one in named),
                   tuple(target_spans), tuple(one.span for one in named))

    def __repr__(self) -> str:
        sides = " → ".join(repr(f"{words[:57]}…" if len(words) > 60 else words) for words in
                           (" ".join(self.words), " ".join(self.targets)))
        without = ", ".join(self.without_effect)
        without = f"{without[:77]}…" if len(without) > 80 else without
        return f"Influence({sides}{f', without effect: {without}' if without else ''})"

    def _repr_html_(self) -> str:
        """The shares as a heat map, for a notebook."""
        from regard.inspection.pictures.svg import heat_svg

        return heat_svg(self.shares(), self.targets, self.words, title="influence")

    @property
    def totals(self) -> Tensor:
        """(words,): the log-probability that the whole output loses without each word, in nats."""
        return self.values.nansum(dim=0)

    @property
    def without_effect(self) -> tuple[str, ...]:
        """The words without which no target changes by MIN_EFFECT nats or more; punctuation is never among them."""
        return tuple(self.words[number] for number in self._without_effect())

    def shares(self) -> Tensor:
        """(targets, words): max(0, value), divided by the sum of the row where that is over MIN_ROW_SUM, 0 elsewhere.
        """
        supporting = self.values.nan_to_num(0.0).clamp(min=0.0)
        sums = supporting.sum(dim=-1, keepdim=True)
        return torch.where(sums > MIN_ROW_SUM, supporting / sums, 0.0)

    def strongest(self) -> tuple[int | None, ...]:
        """For each target the number of the word with the largest share; None if no word has a share."""
        shares = self.shares()
        if not shares.numel():
            return (None,) * len(self.targets)
        best, numbers = shares.max(dim=-1)
        return tuple(number if value > 0 else None
                     for value, number in zip(best.tolist(), numbers.tolist(), strict=True))

    def table(self) -> dict[str, object]:
        """Targets, words with their character positions, and values, as JSON values; an undefined value is None."""
        sides = {"targets": (self.targets, self.target_spans), "words": (self.words, self.word_spans)}
        table: dict[str, object] = {
            name: [{"text": text, **({} if span is None else {"start": span.start, "end": span.end})}
                   for text, span in zip(*side, strict=True)] for name, side in sides.items()}
        return {**table, "values": [list(row) for row in _as_rows(self.values)],
                "without_effect": self._without_effect()}

    def _without_effect(self) -> list[int]:
        defined = ~self.values.isnan()
        effect = (self.values.nan_to_num(0.0).abs() >= MIN_EFFECT).any(dim=0) | ~defined.any(dim=0)
        return [number for number, has in enumerate(effect.tolist())
                if not has and any(map(str.isalnum, self.words[number]))]


def traced_influence(trace: Trace) -> Influence | None:
    """The influence that a trace has, if it has one."""
    found = trace.influence
    if found is None:
        return None
    values = torch.tensor([[math.nan if value is None else value for value in row] for row in found.values],
                          dtype=torch.float64).reshape(len(found.values), len(found.tokens))
    return Influence.of(trace.sides[found.rows], trace.sides[found.columns], found.tokens, values)


class TokenInfluence(NamedTuple):
    """The influence on each token of an output."""

    values: Tensor
    """(n, M), float64; NaN where it is not defined."""
    tokens: Groups
    """For each column the tokens of the input that were left out together."""

    @classmethod
    def of(cls, whole: Sequence[float], without: Sequence[Sequence[float] | None], tokens: Groups) -> "TokenInfluence":
        """From the log-probabilities with the whole input and without each group; None where there are none."""
        whole_n = torch.tensor(whole, dtype=torch.float64)
        columns = [torch.full_like(whole_n, torch.nan) if one is None else
                   whole_n - torch.tensor(one, dtype=torch.float64) for one in without]
        return cls(torch.stack(columns, dim=1) if columns else whole_n.new_zeros(len(whole_n), 0), tokens)

    def traced(self, rows: str, columns: str) -> TracedInfluence:
        """The same as a part of a trace, between these sides."""
        return TracedInfluence(rows, columns, self.tokens, _as_rows(self.values, TRACE_DECIMALS))


def word_groups(count: int, chosen: WordChoice = None, argument: str = "words") -> Groups:
    """The numbers of the words that are left out together: each alone, or neighbours if there are over MAX_GROUPS.

    Args:
        count: the number of words.
        chosen: the numbers of words that are left out, each alone, or groups of numbers; the others are kept.
    """
    if chosen is None:
        return even_groups(range(count))
    groups = tuple(tuple(one) if isinstance(one, Sequence) else (one,) for one in chosen)
    for number in (number for group in groups for number in group or (None,)):
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < count:
            raise checks.wrong(argument, f"numbers of the {checks.plural(count, 'word')}, from 0, or groups of them",
                               "an empty group" if number is None else repr(number))
    return groups


def even_groups(numbers: Sequence[int]) -> Groups:
    """These numbers, each alone; if there are over MAX_GROUPS, in groups of neighbours of one size."""
    size = max(1, -(-len(numbers) // MAX_GROUPS))
    return tuple(tuple(numbers[first:first + size]) for first in range(0, len(numbers), size))


def block_groups(grid: tuple[int, int]) -> Groups:
    """The numbers of the patches that become grey together: each alone, or square blocks if there are over MAX_GROUPS.
    """
    down, across = grid
    side = next(side for side in range(1, max(grid) + 1) if -(-down // side) * -(-across // side) <= MAX_GROUPS)
    return tuple(tuple(row * across + column for row in range(top, min(top + side, down))
                       for column in range(left, min(left + side, across)))
                 for top in range(0, down, side) for left in range(0, across, side))


# What each task computes, for the tokens of its output

@torch.inference_mode()
def translation_tokens(translator: Translator, source: Sequence[int], words: Sequence[Word], target: Sequence[int],
                       chosen: WordChoice = None) -> TokenInfluence:
    """The influence of the words of a source, which has these ids, on the ids of a target."""
    start = translator.start_id()
    check_lengths("text", [source], max_positions(translator.model.encoder))
    check_lengths("translation", [[start, *target][:-1]], max_positions(translator.model.decoder))

    def work(rows: Ids) -> list[list[float]]:
        memory = translator.model.encode(translator.tokens(rows))  # type: ignore[operator]
        return forced(translator.model, memory, [[start]] * len(rows), [target] * len(rows))  # type: ignore[arg-type]

    return _leave_out(translator, source, _token_groups(words, chosen), work, len(target))


@torch.inference_mode()
def completion_tokens(completer: Completer, prompt: Sequence[int], words: Sequence[Word], target: Sequence[int],
                      chosen: WordChoice = None) -> TokenInfluence:
    """The influence of the words of a prompt on the ids of its continuation."""
    completer.check_eval_mode()
    return _leave_out(completer, prompt, _token_groups(words, chosen), lambda rows: forced(
        completer.model, None, rows, [target] * len(rows)), len(target))  # type: ignore[arg-type]


@torch.inference_mode()
def text_tokens(completer: Completer, ids: Sequence[int], words: Sequence[Word],
                chosen: WordChoice = None) -> TokenInfluence:
    """The influence of the words of a text on the tokens after them; the model reads the first id without a guess."""
    completer.check_eval_mode()
    tokens = _token_groups(words, chosen)
    rows = _kept_places(len(ids), tokens)

    def work(some: list[list[int]]) -> list[Tensor]:
        logs = forced(completer.model, None, [[ids[row[0]]] for row in some],  # type: ignore[arg-type]
                      [[ids[at] for at in row[1:]] for row in some])
        return [torch.tensor(one, dtype=torch.float64) for one in logs]

    whole, *without = _of_readable(completer, rows, work)
    assert whole is not None
    values = torch.full((len(ids), len(tokens)), torch.nan, dtype=torch.float64)
    for column, (row, some, logs) in enumerate(zip(rows[1:], tokens, without, strict=True)):
        after = [(at, place) for place, at in enumerate(row[1:]) if at > max(some)]
        if logs is not None and after:
            places, rest = (torch.tensor(numbers) for numbers in zip(*after, strict=True))
            values[places, column] = whole[places - 1] - logs[rest]
    return TokenInfluence(values, tokens)


@torch.inference_mode()
def label_tokens(classifier: Classifier, row: Sequence[int], words: Sequence[Word], label: int,
                 chosen: WordChoice = None) -> TokenInfluence:
    """The influence of the words of a text, which has these ids, on the label with this number."""
    def work(rows: Ids) -> list[list[float]]:
        return _log_probabilities(classifier.model(classifier.tokens(rows)))[:, label:label + 1].tolist()

    return _leave_out(classifier, row, _token_groups(words, chosen), work, 1)


@torch.inference_mode()
def labelled_tokens(labeller: Labeller, tokens: Sequence[str],
                    chosen: WordChoice = None) -> TokenInfluence:
    """The influence of tokens on the labels of the others: rows and columns are numbered as the ids of the tokens."""
    ids, first = labeller.token_ids(tokens)
    check_lengths("text", [ids], labeller.max_positions())
    return _leave_out_beside(labeller, ids, first, _token_groups(token_words(labeller, tokens), chosen))


@torch.inference_mode()
def blank_tokens(filler: Filler, ids: Sequence[int], words: Sequence[Word],
                 chosen: WordChoice = None) -> TokenInfluence:
    """The influence of the words of a text on the most probable token of each blank; other rows are not defined."""
    blanks = [at for at, id_ in enumerate(ids) if id_ == filler.mask_id()]
    return _leave_out_beside(filler, ids, blanks, _token_groups(words, chosen), [*filler.unfit_ids()])


@torch.inference_mode()
def patch_tokens(classifier: Classifier, image: Tensor, label: int,
                 chosen: WordChoice = None) -> TokenInfluence:
    """The influence of the patches of an image (C, H, W), scaled as in training, on the label with this number."""
    patches = next(module for module in classifier.model.modules() if isinstance(module, PatchEmbedding))
    size, across = patches.patch, patches.size[1] // patches.patch
    grid = (patches.size[0] // size, across)
    groups = block_groups(grid) if chosen is None else word_groups(grid[0] * grid[1], chosen)
    weight = next(classifier.model.parameters())

    def work(numbers: list[int]) -> list[list[float]]:
        images = image.to(weight).repeat(len(numbers), 1, 1, 1)
        for row, number in enumerate(numbers):
            for patch in groups[number - 1] if number else ():
                top, left = patch // across * size, patch % across * size
                images[row, :, top:top + size, left:left + size] = GREY
        return _log_probabilities(classifier.model(images))[:, label:label + 1].tolist()

    whole, *without = map_batches([*range(len(groups) + 1)], [1] * (len(groups) + 1), work, IMAGE_BATCH_SIZE)
    lead = 0 if patches.token is None else 1
    return TokenInfluence.of(whole, without, tuple(tuple(patch + lead for patch in some) for some in groups))


# The methods of tasks

def translation_influence(translator: Translator, text: str, translation: Translation | str | None,
                          chosen: WordChoice) -> Influence:
    """`Translator.influence`, for a translator of one direction."""
    check_text(text)
    if isinstance(translation, str):
        check_text(translation, "translation")
    elif translation is not None and not isinstance(translation, Translation):
        raise checks.wrong("translation", "a text, or a result of `translate`", *checks.kind(translation))
    both = translator.pair_tokenizer()
    [source], words = both.encode_sources([text]), both.source_words(text)
    found = translator.translate(text) if translation is None else translation
    ids = both.encode_targets([found])[0] if isinstance(found, str) else [*found.ids]
    end = [] if isinstance(found, Translation) and found.cut else [translator.end_ids()[0]]
    result = translation_tokens(translator, source, words, [*ids, *end], chosen)
    target = TraceSide(tuple(both.target.pieces([*ids, *end])), both.target.decode(ids),
                       tuple(both.target.decoded_words(ids)))
    return Influence.of(target, TraceSide((), text, tuple(words)), result.tokens, result.values)


def language_influence(completer: Completer, given: str | Completion, chosen: WordChoice) -> Influence:
    """`Completer.influence`."""
    tokenizer = completer.text_tokenizer()
    if isinstance(given, Completion):
        prompt, target = [*given.prompt_ids], [*given.ids, *([] if given.cut else completer.end_ids()[:1])]
        read = TraceSide((), given.prompt, tuple(tokenizer.decoded_words(prompt)))
        found = completion_tokens(completer, prompt, read.words, target, chosen)
        text, words = generated_words(tokenizer, given.ids, prompt)
        written = TraceSide(tuple(tokenizer.pieces(target)), text, tuple(words))
        return Influence.of(written, read, found.tokens, found.values)
    if not isinstance(given, str):
        raise checks.wrong("given", "a text, or a result of `complete`", *checks.kind(given))
    [ids] = completer.encode_prompts([check_text(given, "given")])
    words = row_words(completer, given, ids)
    side = TraceSide(tuple(tokenizer.pieces(ids)), given, tuple(words))
    found = text_tokens(completer, ids, words, chosen)
    return Influence.of(side, side, found.tokens, found.values)


def label_influence(classifier: Classifier, given: str | Tensor, label: str | None,
                    chosen: WordChoice) -> Influence:
    """`Classifier.influence`."""
    names = classifier.label_names()
    if isinstance(given, Tensor):
        from regard.data.images import scale_pixels

        if given.dim() != 3:
            raise checks.wrong("given", "a text, or one image (C, H, W)", f"of shape {checks.shape(given)}")
        image = scale_pixels(given) if given.dtype == torch.uint8 else given
        number = _label_number(names, label, classifier._image_probabilities(image.unsqueeze(0))[0])
        found, side = patch_tokens(classifier, image, number, chosen), patch_side(classifier.model)
        assert side is not None
    else:
        if not isinstance(given, str):
            raise checks.wrong("given", "a text, or one image (C, H, W)", *checks.kind(given))
        classifier._check_reads_text("given")
        [row] = classifier.encode_texts([check_text(given, "given")])
        number = _label_number(names, label, classifier._probabilities([row])[0])
        side = TraceSide((), given, tuple(row_words(classifier, given, row)))
        found = label_tokens(classifier, row, side.words, number, chosen)
    return Influence.of(TraceSide((names[number],)), side, found.tokens, found.values)


def labelling_influence(labeller: Labeller, text: str, tokens: Sequence[str], spans: Sequence[Span],
                        chosen: WordChoice) -> Influence:
    """`Labeller.influence`, for the tokens of a text."""
    found = labelled_tokens(labeller, tokens, chosen)
    labels = labeller.label_names()
    [probabilities] = labeller.label_probabilities([tokens])
    best = [labels[number] for number in probabilities.argmax(dim=-1).tolist()]
    words = [word._replace(start=span.start, end=span.end)
             for word, span in zip(token_words(labeller, tokens), spans, strict=True)]
    side = TraceSide(("",) * len(found.values), text, tuple(words))
    made = Influence.of(side, side, found.tokens, found.values)
    return Influence(tuple(f"{token}/{label}" for token, label in zip(tokens, best, strict=True)), made.words,
                     made.values, made.groups, made.target_spans, made.word_spans)


def filling_influence(filler: Filler, text: str, chosen: WordChoice) -> Influence:
    """`Filler.influence`."""
    found = filler.fill(text, top_k=1)
    ids = filler.encode_blanks(text)
    words = filler.blank_words(text, ids)
    result = blank_tokens(filler, ids, words, chosen)
    side = TraceSide(tuple(filler.text_tokenizer().pieces(ids)), text, tuple(words))
    blanks = [at for at, id_ in enumerate(ids) if id_ == filler.mask_id()]
    spans = tuple(next((Span(word.start, word.end) for word in words if word.first_token == at), None) for at in blanks)
    made = Influence.of(TraceSide(("",) * len(blanks)), side, result.tokens, result.values[blanks])
    return Influence(tuple(best.text for best, *_ in found.blanks), made.words, result.values[blanks], made.groups,
                     spans, made.word_spans)


def row_words(task: TextTask, text: str, ids: Sequence[int]) -> list[Word]:
    """The words of a text that a model reads as these ids, after a special id where it has one, maybe truncated."""
    before, last = (0 if task.special.cls is None else 1), len(ids) - 1
    return [word._replace(first_token=word.first_token + before, last_token=min(word.last_token + before, last))
            for word in task.text_tokenizer().words(text) if word.first_token + before <= last]


def token_words(labeller: Labeller, tokens: Sequence[str]) -> list[Word]:
    """The ids of each token of a labeller; the characters are those of the tokens joined by spaces."""
    ids, first = labeller.token_ids(tokens)
    ends, at, words = [*first[1:], len(ids) - len(labeller.special_ids()[1])], 0, list[Word]()
    for token, begin, end in zip(tokens, first, ends, strict=True):
        words.append(Word(at, at + len(token), begin, end - 1))
        at += len(token) + 1
    return words


class _Column(NamedTuple):
    name: str
    words: tuple[int, ...]
    span: Span | None


def _leave_out(task: Task, row: Sequence[int], tokens: Groups,
               work: Callable[[list[list[int]]], list[list[float]]], count: int) -> TokenInfluence:
    """The influence of groups of ids of a row on `count` tokens, whose log-probabilities `work` computes."""
    if not count:
        return TokenInfluence(torch.zeros(0, len(tokens), dtype=torch.float64), tokens)
    rows = [[row[at] for at in kept] for kept in _kept_places(len(row), tokens)]
    whole, *without = _of_readable(task, rows, work, count)
    assert whole is not None
    return TokenInfluence.of(whole, without, tokens)


def _leave_out_beside(task: Task, ids: Sequence[int], places: Sequence[int], tokens: Groups,
                      never: Sequence[int] = ()) -> TokenInfluence:
    """The influence of groups of ids of a row on the most probable result at some of its places.

    Args:
        places: the places with results, in order. Where a group has a place, its value is not defined.
        never: results that are not chosen.
    """
    rows, inside = _kept_places(len(ids), tokens), {*places}

    def work(some: list[list[int]]) -> list[Tensor]:
        logs = _log_probabilities(task.model(task.tokens([[ids[at] for at in row] for row in some])))
        kept = [torch.tensor([place for place, at in enumerate(row) if at in inside], dtype=torch.long) for row in some]
        return [one[own.to(one.device)].double().cpu() for one, own in zip(logs, kept, strict=True)]

    whole, *without = _of_readable(task, rows, work)
    assert whole is not None
    best = whole.index_fill(1, torch.tensor([*never], dtype=torch.long), -torch.inf).argmax(dim=-1, keepdim=True)
    whole, values = whole.gather(1, best), torch.full((len(ids), len(tokens)), torch.nan, dtype=torch.float64)
    for column, (row, logs) in enumerate(zip(rows[1:], without, strict=True)):
        left = {*row}
        numbers = [number for number, at in enumerate(places) if at in left]
        if logs is not None and numbers:
            at = torch.tensor([places[number] for number in numbers])
            values[at, column] = (whole[numbers] - logs.gather(1, best[numbers]))[:, 0]
    return TokenInfluence(values, tokens)


def _kept_places(count: int, tokens: Groups) -> list[list[int]]:
    """All places of a row, and then for each group of tokens the places without them."""
    return [[*range(count)], *([at for at in range(count) if at not in some] for some in map(set, tokens))]


def _of_readable(task: Task, rows: list[list[int]], work: Callable[[list[list[int]]], list[ResultT]],
                 least: int = 1) -> list[ResultT | None]:
    """The results of `work` in batches; None for an empty row, which a model without special ids cannot read."""
    readable = [row for row in rows if row]
    batch_tokens = max(1, min(MAX_BATCH_TOKENS, MAX_LOGITS // task.vocabularies[-1]))
    found = iter(map_batches(readable, [max(len(row), least) for row in readable], work, batch_tokens))
    return [next(found) if row else None for row in rows]


def _token_groups(words: Sequence[Word], chosen: WordChoice) -> Groups:
    return tuple(tuple(token for number in some for token in
                       range(words[number].first_token, words[number].last_token + 1))
                 for some in word_groups(len(words), chosen))


def _log_probabilities(logits: Tensor) -> Tensor:
    return logits.log_softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))


def _label_number(names: Sequence[str], label: str | None, probabilities: Tensor) -> int:
    if label is None:
        return int(probabilities.argmax())
    return checks.pick("label", label, {name: number for number, name in enumerate(names)})


def _units(side: TraceSide) -> list[tuple[int, int, Word | None]]:
    """The words of a side, and each token that belongs to no word, by their first and last token."""
    inside = {token for word in side.words for token in range(word.first_token, word.last_token + 1)}
    units: list[tuple[int, int, Word | None]] = [(word.first_token, word.last_token, word) for word in side.words]
    units += [(token, token, None) for token in range(len(side.tokens)) if token not in inside]
    return sorted(units, key=lambda unit: unit[:2])


def _column(side: TraceSide, tokens: tuple[int, ...]) -> _Column:
    """The words of a side that these tokens are, or their patches."""
    inside = {*tokens}
    numbers = tuple(number for number, word in enumerate(side.words)
                    if not inside.isdisjoint(range(word.first_token, word.last_token + 1)))
    if numbers:
        text, span = side.text or "", Span(side.words[numbers[0]].start, side.words[numbers[-1]].end)
        if numbers == tuple(range(numbers[0], numbers[-1] + 1)):
            return _Column(text[span.start:span.end], numbers, span)
        names = [text[side.words[number].start:side.words[number].end] for number in numbers]
        return _Column(" … ".join(names), numbers, span)
    first, last = side.tokens[tokens[0]], side.tokens[tokens[-1]]
    return _Column(first if first == last else f"{first} to {last}", tuple(token - side.lead for token in tokens), None)


def _as_rows(values: Tensor, decimals: int | None = None) -> tuple[tuple[float | None, ...], ...]:
    """Values as nested tuples, with None for NaN."""
    return tuple(tuple(None if math.isnan(value) else value if decimals is None else round(value, decimals)
                       for value in row) for row in values.tolist())
