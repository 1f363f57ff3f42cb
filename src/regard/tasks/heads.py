"""What each attention head of a model does: its roles, and what the model loses without it.

    report = translator.heads(pairs)       (source, target), or pairs of the phrasebook, which have gold links
    report = completer.heads(texts)        fillers take texts too
    report = classifier.heads(examples)    (text, label); a labeller takes (tokens, labels)
    report.heads[0]                        HeadScores(decoder.1.cross, head 1, cost 0.2, gold 0.59)
    report.save("model")                   heads.json in the model folder; read_heads("model") reads it, and
                                           stored_heads("model", print) for the traces of that model

The cost of a head is the rise of the loss in nats when its output is set to zero before the output projection, with
everything else unchanged. It is exact for these sentences; its standard error says how much it depends on which
sentences they are. It says nothing about two heads that replace each other: each may cost nothing alone. The roles are
defined in `regard.inspection.heads`. Layers without attention, and mixers whose maps are no attention weights (LSTMN,
RWKV), are not listed.

The sequences of a batch are read once for the roles, and once more for each head; what does not depend on the head, the
encoded source of a decoder head, is computed once. docs/trace.md describes heads.json.
"""

import html
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard import checks
from regard._version import __version__
from regard.attention.layer import AttentionLayer
from regard.attention.look import Look, in_this_thread
from regard.data.images import scale_pixels
from regard.data.phrasebook import AlignedPair
from regard.data.tokenizer.interface import Span, Tokenizer, find_units
from regard.inspection.heads import (
    ROLE_NAMES,
    AttentionTokens,
    RoleScores,
    batch_places,
    head_count,
    main_role,
    visible_keys,
    zeroed_head,
)
from regard.inspection.recorder import AttentionModule, find_attention_modules
from regard.inspection.trace_format import MeasuredAttention, MeasuredHead, MeasuredHeads
from regard.inspection.watch import patch_side
from regard.models.vision import ImageClassifier
from regard.storage import folder as folders
from regard.storage.filesystem import write_file
from regard.tasks.alignment import WordLinks
from regard.tasks.classifier import Classifier
from regard.tasks.completer import Completer
from regard.tasks.evaluation import label_tensor, masked_batches, row_losses
from regard.tasks.filler import Filler
from regard.tasks.labeller import Labeller
from regard.tasks.task import WEIGHTS_FILE, Task, length_batches, max_positions
from regard.tasks.translator import Translator
from regard.tokens import IGNORED_LABEL

HEADS_FILE, HEADS_FORMAT = "heads.json", "regard heads 1"
DEFAULT_SENTENCES = 200
"""The number of sentences that are read."""
MAX_WINDOW = 128
"""Tokens of a window of a language model, about a paragraph: longer ones would take long on a CPU."""
IMAGE_BATCH_SIZE = 64
MAX_FILE_BYTES = 1 << 26


@dataclass(frozen=True)
class HeadScores:
    """One attention head: its cost, and the mean weight on the places of each role."""

    attention: str
    """The name of its layer, such as "decoder.1.cross"."""
    layer: int | None
    kind: str
    """"self" or "cross"."""
    head: int
    """Its number in the layer, from 0."""
    cost: float
    """The rise of the loss without this head, in nats per label."""
    cost_error: float
    """The standard error of the cost, over the sentences; 0 for a single one."""
    roles: Mapping[str, float]
    """By role the mean attention weight on its places; only the roles that the data has places for."""
    role: str | None
    """The role that the head has: at least half of its weight is there, and twice that of even weights; or None."""

    def __repr__(self) -> str:
        role = "" if self.role is None else f", {self.role} {self.roles[self.role]:.2f}"
        return f"HeadScores({self.attention}, head {self.head}, cost {self.cost:.4g}{role})"


@dataclass(frozen=True)
class HeadReport:
    """All attention heads of a model, measured on some sentences."""

    heads: tuple[HeadScores, ...]
    """In the order of the model."""
    even: Mapping[str, Mapping[str, float]]
    """By attention and role the score of a head that attends to all visible tokens alike."""
    loss: float
    """The loss of the whole model, in nats per label."""
    labels: int
    """The number of labels that the loss is the mean of: tokens, or texts for a classifier."""
    sentences: int
    skipped: int = 0
    """Sentences that are longer than the model has positions, which were not read."""
    data: str = ""
    """The name of the data, for people."""
    weights_sha256: str | None = field(default=None, compare=False)
    """The sha256 of the model's weights, in a report that was stored with a model."""

    def __repr__(self) -> str:
        return (f"HeadReport({checks.plural(len(self.heads), 'head')}, {checks.plural(self.sentences, 'sentence')}, "
                f"loss {self.loss:.4g})")

    def _repr_html_(self) -> str:
        """The heads as a table, the most costly first, for a notebook."""
        rows = "".join(f"<tr><td>{html.escape(one.attention)}</td><td>{one.head}</td>"
                       f"<td>{one.cost:+.4f} ± {one.cost_error:.4f}</td>"
                       f"<td>{html.escape(ROLE_NAMES.get(one.role or '', ''))}</td>"
                       f"<td>{'' if one.role is None else format(one.roles[one.role], '.2f')}</td></tr>"
                       for one in self.ranked())
        names = "".join(f"<th>{name}</th>" for name in ("attention", "head", "cost (nats)", "role", "weight"))
        return f"<table><thead><tr>{names}</tr></thead><tbody>{rows}</tbody></table>"

    def ranked(self) -> list[HeadScores]:
        """The heads, the most costly first."""
        return sorted(self.heads, key=lambda one: -one.cost)

    def table(self) -> dict[str, Any]:
        """The report as JSON values, in the form of heads.json."""
        attentions: dict[str, dict[str, Any]] = {}
        for one in self.heads:
            entry = attentions.setdefault(one.attention, {
                "name": one.attention, "layer": one.layer, "kind": one.kind, "even": dict(self.even[one.attention]),
                "heads": []})
            entry["heads"].append({"cost": one.cost, "cost_error": one.cost_error, "role": one.role,
                                   "roles": dict(one.roles)})
        return {"format": HEADS_FORMAT, "regard": __version__, "weights_sha256": self.weights_sha256,
                "data": self.data, "sentences": self.sentences, "skipped": self.skipped, "labels": self.labels,
                "loss": self.loss, "attentions": [*attentions.values()]}

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> "HeadReport":
        """The report in the JSON values of `table`; a ValueError where they are not such a table."""
        if not isinstance(table, Mapping) or table.get("format") != HEADS_FORMAT:
            got = table.get("format") if isinstance(table, Mapping) else table
            raise ValueError(f'its format must be "{HEADS_FORMAT}", but is {got!r:.60}')
        try:
            heads, even = list[HeadScores](), dict[str, dict[str, float]]()
            for entry in table["attentions"]:
                even[str(entry["name"])] = {str(role): _finite(value) for role, value in entry["even"].items()}
                for number, one in enumerate(entry["heads"]):
                    roles = {str(role): _finite(value) for role, value in one["roles"].items()}
                    if one["role"] is not None and one["role"] not in roles:
                        raise ValueError(f"head {number} of {entry['name']!r:.60} has no score of its role")
                    heads.append(HeadScores(str(entry["name"]), entry["layer"], str(entry["kind"]), number,
                                            _finite(one["cost"]), _finite(one["cost_error"]), roles, one["role"]))
            return cls(tuple(heads), even, _finite(table["loss"]), int(table["labels"]), int(table["sentences"]),
                       int(table["skipped"]), str(table["data"]), table["weights_sha256"])
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"a key is missing or of another type ({type(error).__name__}: {error})") from None

    def traced(self) -> MeasuredHeads:
        """The report in the form of a trace, which the page shows."""
        entries = dict[str, list[MeasuredHead]]()
        for one in self.heads:
            entries.setdefault(one.attention, []).append(
                MeasuredHead(one.cost, one.cost_error, dict(one.roles), one.role))
        attentions = [MeasuredAttention(name, dict(self.even[name]), tuple(heads)) for name, heads in entries.items()]
        return MeasuredHeads(self.data, self.sentences, self.loss, tuple(attentions))

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write heads.json into the folder of the model that was measured, and return its path."""
        weights = folders.read_manifest(Path(folder)).files.get(WEIGHTS_FILE)
        if weights is None:
            raise ValueError(f"{os.fspath(folder)}: There is no {WEIGHTS_FILE}. Give the folder of the model.")
        table = {**self.table(), "weights_sha256": weights.sha256}
        path = Path(folder) / HEADS_FILE
        write_file(path, json.dumps(table, indent=1, allow_nan=False).encode() + b"\n")
        return path


def read_heads(folder: str | os.PathLike[str]) -> HeadReport | None:
    """The report that is stored with a model; None if there is none, or if the weights have changed since.

    Args:
        folder: the model folder.
    """
    path, manifest = Path(folder) / HEADS_FILE, folders.read_manifest(Path(folder))
    if not path.is_file() or WEIGHTS_FILE not in manifest.files:
        return None
    if path.stat().st_size > MAX_FILE_BYTES:
        raise ValueError(f"{path}: The file has more than {MAX_FILE_BYTES:,} bytes. Measure the heads again.")
    try:
        found = HeadReport.from_table(json.loads(path.read_bytes()))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: This is no report on heads: {error}. Measure the heads again.") from None
    return found if found.weights_sha256 == manifest.files[WEIGHTS_FILE].sha256 else None


def stored_heads(folder: str | os.PathLike[str], note: Callable[[str], None]) -> MeasuredHeads | None:
    """The report that is stored with a model, in the form of a trace; None where `read_heads` finds none.

    Args:
        folder: the model folder.
        note: called with a sentence if the report cannot be read. The page is shown without it.
    """
    try:
        found = read_heads(folder)
    except (OSError, ValueError) as error:  # damaged, or a folder that regard did not save
        note(f"The page does not show what the heads do: {error}")
        return None
    return None if found is None else found.traced()


class _HeadBatch(NamedTuple):
    """A batch of sequences with their labels."""

    tokens: Mapping[str, Sequence[AttentionTokens]]
    """The tokens of each sequence, by the part and kind of an attention: "decoder.cross"."""
    counts: Tensor
    """(B,): the number of labels of each sequence."""
    losses: Callable[[Any], Tensor]
    """The sum of -log p of the labels of each sequence, (B,), from what `encode` returns."""
    encode: Callable[[], Any] = lambda: None
    """What the decoder reads of the source; None for models of one side."""


class _Batches(NamedTuple):
    """All batches, and the numbers of sequences that were read and skipped."""

    batches: list[_HeadBatch]
    read: int
    skipped: int = 0


@torch.inference_mode()
def measure_heads(task: Task, data: Any, *, sentences: int = DEFAULT_SENTENCES, name: str = "",
                  progress: Callable[[int, int], None] | None = None) -> HeadReport:
    """Measure the roles and the cost of every attention head on the first sentences of some data.

    Args:
        task: a `Translator`, `Completer`, `Filler`, `Classifier` or `Labeller`.
        data: as for `Task.heads`.
        sentences: the number of sentences that are read; windows of a text for a `Completer`.
        name: the name of the data, for people.
        progress: called with the number of heads that are measured and the number of all, batch by batch.
    """
    checks.whole_number("sentences", sentences, 1)
    task.check_eval_mode()
    modules = [one for one in find_attention_modules(task.model)
               if isinstance(one.module, AttentionLayer) and one.kind is not None]
    if not modules:
        raise ValueError("This model has no attention layers, so there are no heads to measure.")
    batches, read, skipped = _make_batches(task, data, sentences)
    if not read:
        raise checks.wrong("data", "at least one sentence that the model can read", f"{skipped} that are too long"
                           if skipped else "none")
    scores, whole = {one.name: RoleScores() for one in modules}, list[Tensor]()
    without: dict[tuple[str, int], list[Tensor]] = {
        (one.name, head): [] for one in modules for head in range(head_count(_layer(one)))}
    for number, batch in enumerate(batches):
        memory, losses = _read_roles(batch, modules, scores)
        whole.append(losses)
        done = number * len(without)
        for one in modules:
            for head in range(head_count(_layer(one))):
                with zeroed_head(_layer(one), head):
                    encoded = memory if one.part == "decoder" else batch.encode()
                    without[one.name, head].append(batch.losses(encoded).cpu())
                done += 1
                if progress is not None:
                    progress(done, len(without) * len(batches))
    counts, before = torch.cat([batch.counts for batch in batches]).cpu().double(), torch.cat(whole)
    if not counts.sum():
        raise checks.wrong("data", "sentences with labels that the model knows", "none of them")
    even, heads = {one.name: scores[one.name].even() for one in modules}, list[HeadScores]()
    for one in modules:
        means = scores[one.name].means()
        for head in range(head_count(_layer(one))):
            roles = {role: float(values[head]) for role, values in means.items()}
            cost = ratio_of_sums(torch.cat(without[one.name, head]) - before, counts)
            heads.append(HeadScores(one.name, one.layer, str(one.kind), head, *cost, roles,
                                    main_role(roles, even[one.name])))
    return HeadReport(tuple(heads), even, float(before.sum() / counts.sum()), int(counts.sum()), read, skipped, name)


def ratio_of_sums(values: Tensor, counts: Tensor) -> tuple[float, float]:
    """r = Σ v / Σ n over k sentences, and its standard error √(k / (k - 1) Σ (v - r n)²) / Σ n; 0 for one sentence."""
    total, k = float(counts.sum()), len(values)
    ratio = float(values.sum()) / total
    spread = float((values - ratio * counts).square().sum())
    return ratio, math.sqrt(k / (k - 1) * spread) / total if k > 1 else 0.0


def _layer(module: AttentionModule) -> AttentionLayer:
    assert isinstance(module.module, AttentionLayer)
    return module.module


def _read_roles(batch: _HeadBatch, modules: Sequence[AttentionModule],
                scores: Mapping[str, RoleScores]) -> tuple[Any, Tensor]:
    """Read a batch with the whole model, and add the weights of all heads to their scores.

    Returns what the decoder reads of the source, and the losses of the sequences.
    """
    places = {key: batch_places(tokens, key.rpartition(".")[2]) for key, tokens in batch.tokens.items()}
    read = dict.fromkeys([one.name for one in modules], 0)

    def listener(module: AttentionModule) -> Callable[[Look], None]:
        own = places[f"{module.part}.{module.kind}"]

        def add(look: Look) -> None:
            first = read[module.name]  # a recurrent decoder attends step by step
            read[module.name] += look.query.shape[-2]
            rows = {role: given[:, first:read[module.name]] for role, given in own.items()}
            scores[module.name].add(look.weights(), rows, visible_keys(look))

        return add

    with ExitStack() as taps:
        for module in modules:
            taps.enter_context(_layer(module).tap.listen(in_this_thread(listener(module))))
        memory = batch.encode()
        return memory, batch.losses(memory).cpu()


def _make_batches(task: Task, data: Any, sentences: int) -> _Batches:
    if isinstance(task, Translator):
        return _pair_batches(task, data, sentences)
    if isinstance(task, Completer):
        return _window_batches(task, data, sentences)
    if isinstance(task, Filler):
        return _masked_text_batches(task, data, sentences)
    if isinstance(task, Labeller):
        return _labelled_batches(task, data, sentences)
    if isinstance(task, Classifier) and isinstance(task.model, ImageClassifier):
        return _image_batches(task, data, sentences)
    if isinstance(task, Classifier):
        return _classified_batches(task, data, sentences)
    raise checks.wrong("task", "a Translator, Completer, Filler, Classifier or Labeller", f"a {type(task).__name__}")


class _PairRow(NamedTuple):
    """A sentence pair as ids, and the gold links (row, column) between its tokens."""

    source: list[int]
    target: list[int]
    links: frozenset[tuple[int, int]]


def _pair_batches(task: Translator, pairs: Iterable[Any], sentences: int) -> _Batches:
    both = task.pair_tokenizer()
    some = [_checked_pair(number, pair) for number, pair in enumerate(islice(pairs, sentences))]
    sources = both.encode_sources([pair.source for pair in some])
    targets = both.encode_targets([pair.target for pair in some])
    rows = [_PairRow(source, target, _token_links(both.source, both.target, len(both.controls), pair))
            for pair, source, target in zip(some, sources, targets, strict=True)
            if _fits(len(source), task.model.encoder) and _fits(len(target) + 1, task.model.decoder)]
    lengths = [max(len(row.source), len(row.target) + 1) for row in rows]
    batches = [_pair_batch(task, [rows[number] for number in numbers]) for numbers in length_batches(lengths)]
    return _Batches(batches, len(rows), len(some) - len(rows))


def _fits(count: int, part: object) -> bool:
    limit = max_positions(part)
    return limit is None or count <= limit


def _pair_batch(task: Translator, rows: Sequence[_PairRow]) -> _HeadBatch:
    """A batch of pairs. The decoder reads the start and the target, and predicts the target and the end."""
    both, start, end, model = task.pair_tokenizer(), task.start_id(), task.end_ids()[0], task.model
    source, target = task.tokens([row.source for row in rows]), task.tokens([[start, *row.target] for row in rows])
    labels = label_tensor(task, [[*row.target, end] for row in rows])
    sources, read = ([_side(both.source, row.source) for row in rows],
                     [_side(both.target, [start, *row.target]) for row in rows])
    crossed = [AttentionTokens(both.target.pieces([*row.target, end]), side.pieces, side.separators, row.links)
               for row, side in zip(rows, sources, strict=True)]

    def losses(memory: Any) -> Tensor:
        return row_losses(task, model.decode_features(target, memory), labels)  # type: ignore[operator]

    tokens = {"encoder.self": [*map(_self_tokens, sources)], "decoder.self": [*map(_self_tokens, read)],
              "decoder.cross": crossed}
    return _HeadBatch(tokens, _label_counts(labels), losses, lambda: model.encode(source))  # type: ignore[operator]


def _label_counts(labels: Tensor) -> Tensor:
    """The number of labels of each row that are not ignored, (B,)."""
    return (labels != IGNORED_LABEL).reshape(len(labels), -1).sum(dim=-1)


class _GoldPair(NamedTuple):
    """A sentence pair, the characters of the words on both sides, and the links between these words."""

    source: str
    target: str
    source_words: Sequence[tuple[int, int]] = ()
    target_words: Sequence[tuple[int, int]] = ()
    links: WordLinks = ()


def _checked_pair(number: int, pair: Any) -> _GoldPair:
    """A pair (source, target), (source, target, links between its words), or one of the phrasebook."""
    if isinstance(pair, AlignedPair):
        return _GoldPair(pair.source, pair.target, pair.source_offsets, pair.target_offsets, pair.alignment)
    expected = "a pair of texts, (source, target), and links between their words where there are any"
    if not isinstance(pair, list | tuple) or len(pair) not in (2, 3) or not all(isinstance(one, str)
                                                                               for one in pair[:2]):
        raise checks.wrong(f"data[{number}]", expected, f"{pair!r:.80}")
    if len(pair) == 2:
        return _GoldPair(*pair)
    words = find_units(pair[0]), find_units(pair[1])
    for link in pair[2]:
        if not (isinstance(link, list | tuple) and len(link) == 2
                and all(isinstance(one, int) and 0 <= one < len(side) for one, side in zip(link, words, strict=True))):
            raise checks.wrong(f"data[{number}]", f"links between {len(words[0])} and {len(words[1])} words, from 0",
                               f"{link!r:.60}")
    return _GoldPair(pair[0], pair[1], *words, pair[2])


def _token_links(source: Tokenizer, target: Tokenizer, before: int, pair: _GoldPair) -> frozenset[tuple[int, int]]:
    """The links (row, column) between the tokens of linked words; `before` are control tokens before the source."""
    if not pair.links:
        return frozenset()
    columns, rows = (_tokens_of_words(tokenizer.spans(text), words) for tokenizer, text, words in (
        (source, pair.source, pair.source_words), (target, pair.target, pair.target_words)))
    return frozenset((row, column + before) for one, other in pair.links for row in rows[other]
                     for column in columns[one])


def _tokens_of_words(spans: Sequence[Span], words: Sequence[tuple[int, int]]) -> list[list[int]]:
    return [[number for number, span in enumerate(spans) if span.start < end and start < span.end]
            for start, end in words]


def _window_batches(task: Completer, texts: Iterable[str], sentences: int) -> _Batches:
    """Consecutive windows of the texts; every token but the first of a text is predicted."""
    tokenizer = task.text_tokenizer()
    length = min(MAX_WINDOW, max_positions(task.model.decoder) or MAX_WINDOW)

    def windows() -> Iterator[list[int]]:
        for number, text in enumerate(texts):
            ids = tokenizer.encode(_checked_text(number, text))
            yield from (ids[start:start + length + 1] for start in range(0, len(ids) - 1, length))

    rows = [*islice(windows(), sentences)]

    def batch(numbers: list[int]) -> _HeadBatch:
        given = [rows[number] for number in numbers]
        inputs, labels = task.tokens([row[:-1] for row in given]), label_tensor(task, [row[1:] for row in given])
        return _HeadBatch({"decoder.self": [_self_tokens(_side(tokenizer, row[:-1])) for row in given]},
                          _label_counts(labels),
                          lambda _: row_losses(task, task.model.features(inputs), labels))  # type: ignore[operator]

    return _Batches([batch(numbers) for numbers in length_batches([len(row) - 1 for row in rows])], len(rows))


def _masked_text_batches(task: Filler, texts: Iterable[str], sentences: int) -> _Batches:
    """Texts with masked tokens, always the same ones."""
    some = [_checked_text(number, text) for number, text in enumerate(islice(texts, sentences))]
    batches = []
    for one in masked_batches(task, some):
        rows = [row[:int(length)].tolist() for row, length in zip(one.inputs.ids, one.inputs.lengths, strict=True)]  # type: ignore[arg-type]
        batches.append(_encoder_batch(task, [_self_tokens(_side(task.text_tokenizer(), row)) for row in rows],
                                      one.inputs, one.labels))
    return _Batches(batches, len(some))


def _classified_batches(task: Classifier, examples: Iterable[Any], sentences: int) -> _Batches:
    """Texts with one label each."""
    numbers = {name: number for number, name in enumerate(task.label_names())}
    some = [_checked_example(number, one, numbers) for number, one in enumerate(islice(examples, sentences))]
    rows, tokenizer = task.encode_texts([text for text, _ in some]), task.text_tokenizer()
    return _Batches([_encoder_batch(task, [_self_tokens(_side(tokenizer, rows[one])) for one in chosen],
                                    task.tokens([rows[one] for one in chosen]),
                                    torch.tensor([some[one][1] for one in chosen], device=task.device))
                     for chosen in length_batches([*map(len, rows)])], len(rows))


def _checked_example(number: int, example: Any, labels: Mapping[str, int]) -> tuple[str, int]:
    if not isinstance(example, list | tuple) or len(example) != 2 or not isinstance(example[0], str):
        raise checks.wrong(f"data[{number}]", "a text and its label, (text, label)", f"{example!r:.80}")
    return example[0], checks.pick(f"data[{number}]", example[1], labels)


def _labelled_batches(task: Labeller, sequences: Iterable[Any], sentences: int) -> _Batches:
    """Sequences of tokens with a label each; labels that the model does not have are not counted."""
    numbers = {name: number for number, name in enumerate(task.label_names())}
    rows, skipped = list[tuple[list[int], list[int]]](), 0
    limit, tokenizer = task.max_positions(), task.text_tokenizer()
    for number, one in enumerate(islice(sequences, sentences)):
        if not isinstance(one, list | tuple) or len(one) != 2 or len(one[0]) != len(one[1]):
            raise checks.wrong(f"data[{number}]", "tokens and as many labels, (tokens, labels)", f"{one!r:.80}")
        ids, first = task.token_ids(one[0])
        labels = [IGNORED_LABEL] * len(ids)
        for at, label in zip(first, one[1], strict=True):
            labels[at] = numbers.get(label, IGNORED_LABEL)
        if limit is not None and len(ids) > limit:
            skipped += 1
        elif ids:
            rows.append((ids, labels))
    return _Batches([_encoder_batch(task, [_self_tokens(_side(tokenizer, rows[one][0])) for one in chosen],
                                    task.tokens([rows[one][0] for one in chosen]),
                                    label_tensor(task, [rows[one][1] for one in chosen]))
                     for chosen in length_batches([len(ids) for ids, _ in rows])], len(rows), skipped)


def _image_batches(task: Classifier, examples: Any, sentences: int) -> _Batches:
    """Images with one label each, evenly spaced over all, which may be sorted: the tokens are patches, row by row."""
    if not isinstance(examples, list | tuple) or len(examples) != 2 or not isinstance(examples[0], Tensor):
        raise checks.wrong("data", "images and their labels, (a tensor (B, C, H, W), names)", *checks.kind(examples))
    numbers = {name: number for number, name in enumerate(task.label_names())}
    images, names = examples[0], [*examples[1]]
    if len(images) != len(names):
        raise checks.wrong("data", f"a label for each of the {len(images)} images", len(names))
    step = max(1, len(images) // sentences)
    images, names = images[::step][:sentences], names[::step][:sentences]
    labels = torch.tensor([checks.pick("data", name, numbers) for name in names], device=task.device)
    pixels = (scale_pixels(images) if images.dtype == torch.uint8 else images).to(next(task.model.parameters()))
    side = patch_side(task.model)
    assert side is not None
    tokens = AttentionTokens(side.tokens, side.tokens, [number < side.lead for number in range(len(side.tokens))])
    return _Batches([_encoder_batch(task, [tokens] * len(some), some, expected) for some, expected in
                     zip(pixels.split(IMAGE_BATCH_SIZE), labels.split(IMAGE_BATCH_SIZE), strict=True)], len(images))


def _encoder_batch(task: Task, sequences: Sequence[AttentionTokens], inputs: Any, labels: Tensor) -> _HeadBatch:
    """A batch of a model that reads whole sequences."""
    return _HeadBatch({"encoder.self": sequences}, _label_counts(labels),
                      lambda _: row_losses(task, task.model.features(inputs), labels))  # type: ignore[operator]


def _checked_text(number: int, text: Any) -> str:
    if not isinstance(text, str):
        raise checks.wrong(f"data[{number}]", "a text", *checks.kind(text))
    return text


class _Side(NamedTuple):
    """The names of tokens, and for each whether it is a separator."""

    pieces: Sequence[str]
    separators: Sequence[bool]


def _side(tokenizer: Tokenizer, ids: Sequence[int]) -> _Side:
    special = {*tokenizer.special.ids(), *tokenizer.controls.values()}
    pieces = tokenizer.pieces(list(ids))
    return _Side(pieces, [id_ in special or not any(map(str.isalnum, piece))
                          for id_, piece in zip(ids, pieces, strict=True)])


def _self_tokens(side: _Side) -> AttentionTokens:
    return AttentionTokens(side.pieces, side.pieces, side.separators)


def _finite(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"expected a finite number, but got {value!r:.60}")
    return float(value)
