"""Traces of tasks: what a model attends to while it reads or generates one text.

    trace_translation(translator, "Two dogs.", beams=5)     the translation, all attention, and the search tree
    trace_forced(translator, "Two dogs.", "Deux chats.")    the same for a given translation
    trace_generated(translator, "Two dogs.", translation)   the same for a result of `translate` or `search`
    trace_completion(completer, "Once upon", max_length=20) a text and its continuation
    trace_input(filler, "The ___ sleeps.")                  a text that is only read
    trace_image(classifier, image)                          an image, in patches

`regard look` uses these functions: they show more than `regard.watch`, such as the search tree, another result of the
search, another prefix, the influence of each word (`influence_limit`), or what a model predicts at each place. While
the model is loaded, `trace.leave_out(words)` computes the influence of some words, such as those of a group.

The `replay_...` functions are what a task tells its observers (`Task.notify`): the tokens that its model read and
wrote, and how to read them once more. A generated text is read teacher-forced, all tokens at once, which gives the same
attention weights: row i of the map of a translation is the attention from which token i was predicted.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor

from regard import checks
from regard.data.filters import is_blank
from regard.data.tokenizer.interface import PairTokenizer, Tokenizer, Word
from regard.data.tokenizer.units import token_spans
from regard.decoding.forced import forced, ranked
from regard.decoding.request import Hypothesis
from regard.decoding.tree import SearchTree, beam_tree
from regard.inspection.recorder import CROSS, find_attention_modules
from regard.inspection.trace import Trace
from regard.inspection.trace_format import (
    GeneratedTokens,
    SearchNode,
    TracedImage,
    TracedInfluence,
    TracedPredictions,
    TracedSearch,
    TraceSide,
)
from regard.inspection.watch import (
    DEFAULT_LIMIT,
    AlignmentAttention,
    Replay,
    SequenceInfo,
    TaskRecords,
    parse_bytes,
    patch_side,
)
from regard.models.vision import ImageClassifier
from regard.tasks.classifier import Classifier, Embedder
from regard.tasks.completer import Completer
from regard.tasks.filler import BLANK_PATTERN, Filler
from regard.tasks.influence import (
    MAX_GROUPS,
    TRACE_DECIMALS,
    Groups,
    TokenInfluence,
    blank_tokens,
    completion_tokens,
    even_groups,
    label_tokens,
    labelled_tokens,
    patch_tokens,
    text_tokens,
    translation_tokens,
)
from regard.tasks.labeller import Labeller, Labelling
from regard.tasks.search import Beam, GeneratedText, SearchInputs
from regard.tasks.task import Task, check_lengths, ids_without_token, max_positions
from regard.tasks.translator import Translator
from regard.tokens import Tokens

TITLE_LENGTH = 80
"""Characters of a text that are shown above a picture."""
SOURCE, TARGET, READ, TEXT, WRITTEN, IMAGE = "source", "target", "read", "text", "written", "image"
LABELS, LABEL = "labels", "label"
INFLUENCE_LIMIT = MAX_GROUPS
"""The default number of input words up to which the influence is computed: each word is left out alone."""
CANDIDATES = 5
"""The number of tokens that predictions name at each place."""
MAX_RANKED_TOKENS = 4096
"""The number of tokens up to which predictions name tokens at each place; in a longer text only after its end."""
ATTENTION_SIDES = {"encoder.self": (SOURCE, SOURCE), "decoder.self": (TARGET, READ), "decoder.cross": (TARGET, SOURCE)}


@dataclass(frozen=True, kw_only=True)
class _RecordedBeam(Beam):
    """A beam search that keeps its search trees."""

    trees: list[SearchTree] = field(default_factory=list)

    @staticmethod
    def of(beams: int, max_length: int | None = None) -> "_RecordedBeam":
        """With the defaults of the commands: one beam is greedy search."""
        return _RecordedBeam(beams=beams, nbest=beams, length_penalty="mean" if beams > 1 else "none",
                             max_length=max_length)

    def _run(self, inputs: SearchInputs, options: dict[str, Any]) -> list[list[Hypothesis]]:
        found = beam_tree(inputs.model, inputs.memory, beams=self.beams, nbest=self.nbest,  # type: ignore[arg-type]
                          length_penalty=self.length_penalty,
                          **{name: value for name, value in options.items() if name != "min_length"})
        self.trees.extend(tree for _, tree in found)
        return [hypotheses for hypotheses, _ in found]


def trace_translation(translator: Translator, text: str, *, beams: int = 5, choice: int = 0, prefix: str = "",
                      translation: str | None = None, name: str = "", influence_limit: int = 0) -> Trace:
    """Trace the translation of a text, with the search tree.

    Args:
        beams: the beam size.
        choice: the number of the result that is traced; 0 is the best.
        prefix: the beginning of the translation.
        translation: the result that is traced, by its text. One that the search does not find is read as it is
            (`trace_forced`), and has no search tree.
        name: the name of the model, for display.
        influence_limit: the number of source words up to which the influence of each is computed; 0 leaves it out.
    """
    _check_text(text)
    strategy, both = _RecordedBeam.of(beams), translator.pair_tokenizer()
    [best] = translator.search([text], strategy, prefix=prefix)
    results = [best, *best.alternatives]
    if translation is not None:
        same = [number for number, one in enumerate(results) if one.text.strip() == translation.strip()]
        if not same:
            return trace_forced(translator, text, translation, name=name, influence_limit=influence_limit)
        choice = same[0]
    if not 0 <= choice < len(results):
        raise checks.wrong("choice", f"one of the {len(results)} results of the search, from 0", choice)
    prefix_ids = both.encode_targets([prefix])[0]
    tree = _search_tree(strategy, both.target, prefix_ids, best.log_probabilities)
    return _trace_pair(translator, text, results[choice], name, tree, influence_limit)


def trace_forced(translator: Translator, text: str, translation: str, *, name: str = "",
                 influence_limit: int = 0) -> Trace:
    """Trace a given translation; its score is the mean log-probability of its tokens."""
    _check_text(text)
    both = translator.pair_tokenizer()
    [source], [ids], end = both.encode_sources([text]), both.encode_targets([translation]), translator.end_ids()[0]
    check_lengths("text", [source], max_positions(translator.model.encoder))
    check_lengths("translation", [[translator.start_id(), *ids]], max_positions(translator.model.decoder))
    memory = translator.model.encode(translator.tokens([source]))  # type: ignore[operator]
    [logs] = forced(translator.model, memory, [[translator.start_id()]], [[*ids, end]])  # type: ignore[arg-type]
    found = Hypothesis(ids, logs, sum(logs) / len(logs), end)
    return _trace_pair(translator, text, found, name, influence_limit=influence_limit)


def trace_generated(translator: Translator, text: str, found: GeneratedText, *, name: str = "",
                    influence_limit: int = 0) -> Trace:
    """Trace a translation that the model generated before, from exactly its tokens; it has no search tree."""
    _check_text(text)
    return _trace_pair(translator, text, found, name, influence_limit=influence_limit)


def trace_completion(completer: Completer, text: str, *, max_length: int = 0, beams: int = 1,
                     name: str = "", influence_limit: int = 0) -> Trace:
    """Trace a text and a continuation of at most `max_length` tokens. With 0 the text is only read."""
    tokenizer = completer.text_tokenizer()
    if not max_length:
        _check_text(text)
        first = [] if completer.special.cls is None else [completer.special.cls]
        ids = [*first, *tokenizer.encode(text)]
        check_lengths("text", [ids], max_positions(completer.model.decoder))
        trace = _with_predictions(_make_trace(completer, replay_sequence(completer, ids, text), name), completer, ids)
        words = trace.sides[TEXT].words
        return _with_influence(trace, len(words), influence_limit, TEXT, TEXT,
                               lambda chosen: text_tokens(completer, ids, words, chosen))
    strategy = _RecordedBeam.of(beams, max_length)
    [found] = completer.search([text], strategy)
    tree = _search_tree(strategy, tokenizer)
    trace = _with_predictions(_make_trace(completer, replay_completion(completer, found.prompt_ids, found), name, tree),
                              completer, [*found.prompt_ids, *found.ids])
    words = tuple(tokenizer.decoded_words(found.prompt_ids))
    target = [*found.ids, *([] if found.cut else completer.end_ids()[:1])]
    return _with_influence(trace, len(words) if WRITTEN in trace.sides else 0, influence_limit, WRITTEN, TEXT,
                           lambda chosen: completion_tokens(completer, found.prompt_ids, words, target, chosen))


def trace_input(task: Filler | Classifier | Labeller | Embedder, text: str, *, name: str = "",
                influence_limit: int = 0) -> Trace:
    """Trace a text that a model reads; for a `Filler` a blank in it, ___, is a masked token.

    For a `Labeller` the rows of the maps are tokens with their labels, such as cat/NOUN. With a limit for the
    influence, the label of a `Classifier` is a side of its own.
    """
    if isinstance(task, Labeller):
        _check_text(text)
        tokens = [text[span.start:span.end] for span in token_spans(text, task.unit,
                                                                    split_punctuation=task.splits_punctuation)]
        check_lengths("text", [task.token_ids(tokens).ids], task.max_positions())
        trace = _with_label_predictions(_make_trace(task, replay_labelled(task, tokens, text), name), task, tokens)
        return _with_influence(trace, len(tokens), influence_limit, LABELS, TEXT,
                               lambda chosen: labelled_tokens(task, tokens, chosen))
    if isinstance(task, Filler) and BLANK_PATTERN.search(text):
        ids = task.encode_blanks(text)
    else:
        [ids] = task.encode_texts([text])
    trace = _make_trace(task, replay_sequence(task, ids, text), name)
    words = trace.sides[TEXT].words
    if isinstance(task, Filler):
        return _with_blanks(trace, task, text, ids, influence_limit)
    if not isinstance(task, Classifier) or not influence_limit:
        return trace
    with torch.inference_mode():
        probabilities = task._probabilities([ids])[0]
    label = int(probabilities.argmax())
    return _with_influence(_with_label(trace, task, probabilities), len(words), influence_limit, LABEL, TEXT,
                           lambda chosen: label_tokens(task, ids, words, label, chosen))


def trace_image(classifier: Classifier, image: Tensor, *, title: str = "", name: str = "",
                influence_limit: int = 0) -> Trace:
    """Trace an image (C, H, W), scaled as in training, in patches.

    With a limit for the influence, that of each patch, or of square blocks of them, on the label is computed.
    """
    if not isinstance(classifier.model, ImageClassifier):
        raise checks.wrong("classifier", "one of images", "one of texts")
    trace = replace(_make_trace(classifier, replay_image(classifier, image), name), title=title)
    if not influence_limit:
        return trace
    probabilities = classifier._image_probabilities(image.unsqueeze(0))[0]
    label = int(probabilities.argmax())
    return _with_influence(_with_label(trace, classifier, probabilities), 1, influence_limit, LABEL, IMAGE,
                           lambda chosen: patch_tokens(classifier, image, label, chosen))


def _trace_pair(translator: Translator, text: str, found: Hypothesis | GeneratedText, name: str,
                tree: TracedSearch | None = None, influence_limit: int = 0) -> Trace:
    if not found.ids and found.cut:
        raise ValueError("The model generated nothing for this text, so there is no attention to show.")
    [source] = translator.pair_tokenizer().encode_sources([text])
    trace = _make_trace(translator, replay_translation(translator, text, source, found, translator.start_id()), name,
                        tree)
    words, target = trace.sides[SOURCE].words, [*found.ids, *([] if found.cut else translator.end_ids()[:1])]
    return _with_influence(trace, len(words), influence_limit, TARGET, SOURCE,
                           lambda chosen: translation_tokens(translator, source, words, target, chosen))


def _make_trace(task: Task, replay: Replay, name: str, tree: TracedSearch | None = None) -> Trace:
    """The trace of a model that reads this once more."""
    if not find_attention_modules(task.model):
        instead = " In Python, its method `influence` measures what each input word changes."
        raise ValueError(f"{name or 'This model'} has no attention layers, so there is nothing to show."
                         f"{instead if hasattr(task, 'influence') else ''}")
    records = TaskRecords(task.model, parse_bytes(DEFAULT_LIMIT))
    records.replays.append(replay)
    found = records.trace(model=name)
    title = found.title if len(found.title) <= TITLE_LENGTH else found.title[:TITLE_LENGTH - 1].rstrip() + "…"
    return replace(found, title=title, search=tree)


def _with_influence(trace: Trace, words: int, limit: int, rows: str, columns: str,
                    compute: Callable[[Groups | None], TokenInfluence]) -> Trace:
    """The trace with the influence between two sides, if there are not more words than the limit.

    If there are words at all, it can compute the influence of some of them later.
    """
    if not words:
        return trace

    def leave_out(numbers: Sequence[int] | None = None) -> TracedInfluence:
        return compute(None if numbers is None else even_groups(numbers)).traced(rows, columns)

    return replace(trace, leave_out=leave_out, influence=leave_out() if words <= limit else None)


def _with_label(trace: Trace, classifier: Classifier, probabilities: Tensor) -> Trace:
    """The trace with the most probable label as a side of its own, and the labels after it."""
    names, best = classifier.label_names(), probabilities.topk(min(CANDIDATES, len(probabilities)))
    labels, [logs] = [names[number] for number in best.indices.tolist()], _rounded([best.values.log().tolist()])
    side = TraceSide((labels[0],), labels[0], (Word(0, len(labels[0]), 0, 0),))
    return replace(trace, sides={**trace.sides, LABEL: side}, written=GeneratedTokens(LABEL, logs[:1]),
                   predictions=TracedPredictions(LABEL, logs[:1], (tuple(labels[:len(logs)]),), (logs,)))


def _with_predictions(trace: Trace, completer: Completer, ids: Sequence[int]) -> Trace:
    """The trace with what a language model predicts at each place of its text, and after it."""
    tokenizer = completer.text_tokenizer()
    completer.check_eval_mode()
    found = ranked(completer.model, ids, CANDIDATES,  # type: ignore[arg-type]
                   never=ids_without_token(tokenizer, completer.vocabularies[-1]))
    skipped = 0 if len(ids) <= MAX_RANKED_TOKENS else len(ids) - 1
    rows = [(), *([()] * skipped), *_rounded(found.id_log_probabilities[skipped:])]
    pieces = [(), *([()] * skipped), *map(tokenizer.pieces, found.ids[skipped:])]
    own = [round(one, TRACE_DECIMALS) if math.isfinite(one) else None for one in found.log_probabilities]
    return replace(trace, predictions=TracedPredictions(
        TEXT, (None, *own), tuple(tuple(names[:len(row)]) for names, row in zip(pieces, rows, strict=True)),
        tuple(rows)))


def _with_blanks(trace: Trace, filler: Filler, text: str, ids: Sequence[int], influence_limit: int) -> Trace:
    """The trace with the words of a text with blanks, the most probable tokens of each blank, and the influence on it.
    """
    if filler.special.mask is None or filler.special.mask not in ids:
        return trace
    tokenizer, unfit, words = filler.text_tokenizer(), filler.unfit_ids(), filler.blank_words(text, ids)
    blanks = iter(filler._guesses([ids], CANDIDATES + len(unfit))[0])
    rows = [[guess for guess in (next(blanks) if id_ == filler.special.mask else ())
             if guess.id not in unfit and guess.probability > 0][:CANDIDATES] for id_ in ids]
    names = tuple(tuple(tokenizer.pieces([guess.id for guess in row])) for row in rows)
    logs = _rounded([[math.log(guess.probability) for guess in row] for row in rows])
    side = replace(trace.sides[TEXT], words=tuple(words))
    trace = replace(trace, sides={**trace.sides, TEXT: side},
                    predictions=TracedPredictions(TEXT, (None,) * len(ids), names, logs))
    return _with_influence(trace, len(words), influence_limit, TEXT, TEXT,
                           lambda chosen: blank_tokens(filler, ids, words, chosen))


def _with_label_predictions(trace: Trace, labeller: Labeller, tokens: Sequence[str]) -> Trace:
    """The trace with the probability of the label of each token, and of other labels."""
    names, [probabilities] = labeller.label_names(), labeller.label_probabilities([tokens])
    best = probabilities.topk(min(CANDIDATES, len(names)))
    own = dict(zip(labeller.token_ids(tokens).first, range(len(tokens)), strict=True))
    logs, labels = _rounded(best.values.log().tolist()), best.indices.tolist()
    places = [own.get(place) for place in range(len(trace.sides[LABELS].tokens))]
    return replace(trace, predictions=TracedPredictions(
        LABELS, tuple(None if at is None else logs[at][0] for at in places),
        tuple(() if at is None else tuple(names[number] for number in labels[at][:len(logs[at])]) for at in places),
        tuple(() if at is None else logs[at] for at in places)))


def _rounded(rows: Sequence[Sequence[float]]) -> tuple[tuple[float, ...], ...]:
    """Log-probabilities as a trace has them; a row ends before the first that is not finite."""
    return tuple(tuple(round(one, TRACE_DECIMALS) for one in takewhile(math.isfinite, row)) for row in rows)


def _search_tree(strategy: _RecordedBeam, tokenizer: Tokenizer, prefix: Sequence[int] = (),
                 logs: Sequence[float] = ()) -> TracedSearch:
    """The search tree with token names, after a prefix with its log-probabilities."""
    nodes, total, tree = list[SearchNode](), 0.0, strategy.trees[0]
    for id_, log in zip(prefix, logs, strict=False):
        total += log
        nodes.append(SearchNode(len(nodes) - 1, tokenizer.pieces([id_])[0], log, total, False, True))
    shift, ids = len(nodes), sorted({branch.token for branch in tree.branches})
    pieces = dict(zip(ids, tokenizer.pieces(ids), strict=True))
    for branch in tree.branches:
        parent = branch.parent + shift if branch.parent >= 0 else shift - 1
        nodes.append(SearchNode(parent, pieces[branch.token], branch.log_probability, total + branch.total,
                                branch.ended, branch.kept, branch.score))
    return TracedSearch(strategy.beams, tuple(nodes), tuple(place + shift for place in tree.best),
                        tree.left_out or None, "mean" if strategy.length_penalty == "mean" else "total")


def _check_text(text: str) -> None:
    if not isinstance(text, str):
        raise checks.wrong("text", "a text", *checks.kind(text))
    if is_blank(text):
        raise checks.wrong("text", "a text that is not blank", repr(text))


def replay_translation(task: Task, text: str | None, source: Sequence[int], found: Hypothesis | GeneratedText,
                       start: int) -> Replay:
    """A source and its translation, after the token `start`."""
    both = task.tokenizer if isinstance(task.tokenizer, PairTokenizer) else None
    written = [*found.ids, *([] if found.cut else task.end_ids()[:1])]
    read = [start, *written[:-1]]
    source_tokenizer, target_tokenizer = (None, None) if both is None else (both.source, both.target)
    before = 0 if both is None else len(both.controls)
    sides = {SOURCE: _input_side(source_tokenizer, text, source, before),
             READ: TraceSide(_piece_names(target_tokenizer, read))}
    if written:  # a maximum length of 0 leaves none
        sides[TARGET] = _output_side(target_tokenizer, found.ids, written)

    def again() -> None:
        memory = task.model.encode(_unpadded(task, source))  # type: ignore[operator]
        task.model.decode(_unpadded(task, read), memory)  # type: ignore[operator]

    return Replay(again, SequenceInfo(sides, ATTENTION_SIDES, text or "", _generated_tokens(TARGET, found, written),
                                      _alignment_attention(task)))


def replay_completion(task: Task, prompt: Sequence[int], found: Hypothesis | GeneratedText) -> Replay:
    """A prompt and its continuation, as one text."""
    tokenizer = task.tokenizer if isinstance(task.tokenizer, Tokenizer) else None
    ids, written = [*prompt, *found.ids], [*found.ids, *([] if found.cut else task.end_ids()[:1])]
    sides, generated = {TEXT: _output_side(tokenizer, ids, ids)}, _generated_tokens(WRITTEN, found, written)
    if generated is not None:
        sides[WRITTEN] = TraceSide(_piece_names(tokenizer, written))
    return Replay(lambda: task.model.decode(_unpadded(task, ids)),  # type: ignore[operator]
                  SequenceInfo(sides, {}, sides[TEXT].text or "", generated))


def replay_sequence(task: Task, ids: Sequence[int], text: str | None = None) -> Replay:
    """Ids that were read, and the text that they encode."""
    tokenizer = task.tokenizer if isinstance(task.tokenizer, Tokenizer) else None
    before = 0 if task.special.cls is None else 1
    info = SequenceInfo({TEXT: _input_side(tokenizer, text, ids, before)}, {}, text or "")
    return Replay(lambda: task.model(_unpadded(task, ids)), info)


def replay_labelled(labeller: Labeller, tokens: Sequence[str], text: str) -> Replay:
    """Tokens that were read and labelled: the rows of the maps are token/label, the columns tokens."""
    ids, first = labeller.token_ids(tokens)
    pieces = _piece_names(labeller.text_tokenizer(), ids)
    found = labeller.label_tokens([tokens])[0] if not labeller.observers else _quiet_labels(labeller, tokens)
    marked = list(pieces)
    words, columns, at, start = list[Word](), list[Word](), 0, 0
    ends = [*first[1:], len(ids) - len(labeller.special_ids()[1])]
    for token, label, begin, end in zip(tokens, found.labels, first, ends, strict=True):
        marked[begin] = f"{pieces[begin]}/{label}"
        words.append(Word(at, at + len(token) + 1 + len(label), begin, end - 1))
        columns.append(Word(start, start + len(token), begin, end - 1))
        at, start = words[-1].end + 1, columns[-1].end + 1
    sides = {TEXT: TraceSide(pieces, " ".join(tokens), tuple(columns)),
             LABELS: TraceSide(tuple(marked), " ".join(f"{token}/{label}" for token, label in
                                                       zip(tokens, found.labels, strict=True)), tuple(words))}
    return Replay(lambda: labeller.model(_unpadded(labeller, ids)),
                  SequenceInfo(sides, {"encoder.self": (LABELS, TEXT)}, text))


def _quiet_labels(labeller: Labeller, tokens: Sequence[str]) -> Labelling:
    """The labels of tokens, without telling observers."""
    observers, labeller.observers = labeller.observers, []
    try:
        return labeller.label_tokens([tokens])[0]
    finally:
        labeller.observers = observers


def replay_image(task: Task, pixels: Tensor) -> Replay:
    """An image (C, H, W) that was read, scaled as in training."""
    side, weight = patch_side(task.model), next(task.model.parameters())
    sides = {} if side is None else {IMAGE: replace(side, image=_traced_image(pixels))}
    return Replay(lambda: task.model(pixels.to(weight).unsqueeze(0)), SequenceInfo(sides))


def _traced_image(pixels: Tensor) -> TracedImage | None:
    """The bytes of an image (C, H, W) from -1 to 1; None if it is neither grey nor in colours."""
    if pixels.dim() != 3 or pixels.shape[0] not in (1, 3):
        return None
    channels, height, width = pixels.shape
    scaled = ((pixels.detach().float() + 1.0) * 127.5).round().clamp(0, 255).to(torch.uint8)
    return TracedImage(height, width, channels, scaled.permute(1, 2, 0).contiguous().cpu().numpy().tobytes())


def _unpadded(task: Task, ids: Sequence[int]) -> Tokens:
    """One row without padding, so that no mask is materialised, however long the row is."""
    return Tokens(task.tokens([ids]).ids)


def _input_side(tokenizer: Tokenizer | None, text: str | None, ids: Sequence[int], before: int = 0) -> TraceSide:
    """A text that was read, with `before` special tokens before it; of ids alone only their names."""
    pieces = _piece_names(tokenizer, ids)
    if tokenizer is None or text is None:
        return TraceSide(pieces)
    plain = tokenizer.encode_batch([text])[0]
    if list(ids[before:before + len(plain)]) != plain[:len(ids) - before]:  # a text with blanks: no word positions
        return TraceSide(pieces, text)
    last = len(ids) - 1
    words = [word._replace(first_token=word.first_token + before, last_token=min(word.last_token + before, last))
             for word in tokenizer.words(text) if word.first_token + before <= last]
    return TraceSide(pieces, text, tuple(words))


def _output_side(tokenizer: Tokenizer | None, ids: Sequence[int], written: Sequence[int]) -> TraceSide:
    """A generated text; `written` may have the end token after `ids`."""
    if tokenizer is None:
        return TraceSide(_piece_names(None, written))
    return TraceSide(_piece_names(tokenizer, written), tokenizer.decode(ids), tuple(tokenizer.decoded_words(ids)))


def _generated_tokens(side: str, found: Hypothesis | GeneratedText, written: Sequence[int]) -> GeneratedTokens | None:
    """The log-probabilities of the generated tokens; None if not all are known."""
    logs = tuple(found.log_probabilities[:len(written)])
    return GeneratedTokens(side, logs, found.score) if written and len(logs) == len(written) else None


def _piece_names(tokenizer: Tokenizer | None, ids: Sequence[int]) -> tuple[str, ...]:
    return tuple(map(str, ids)) if tokenizer is None else tuple(tokenizer.pieces(list(ids)))


def _alignment_attention(task: Task) -> AlignmentAttention | None:
    """The attention from which the task reads word alignments."""
    head, cross = task.aligned_by, [place.name for place in find_attention_modules(task.model) if place.kind == CROSS]
    if head is None or not -len(cross) <= head.layer < len(cross):
        return None
    return AlignmentAttention(cross[head.layer], head.head, head.offset)
