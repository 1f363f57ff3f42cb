"""What a model looks at while it reads or writes one text, as a trace: for every task, with the tree of the search.

    translated(translator, "Two dogs.", beams=5)     the translation, all attentions, and the tree of the search
    forced(translator, "Two dogs.", "Deux chats.")   the same for a translation of somebody's own
    completed(completer, "Once upon", limit=20)      a text and what follows
    read(filler, "The ___ sleeps.")                  a text that is read
    seen_image(classifier, image)                    an image, in patches

`regard.watch` shows what a task did when it was called as always. Here somebody wants to see more of one text: all that
the search considered, another of its results, another beginning. What is read again, and how its sides are called, is
known to `regard.tasks.replay`. It draws nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from regard import checks
from regard.data.filters import is_blank
from regard.data.tokenizer.interface import Tokenizer
from regard.decoding import forced as forcing
from regard.decoding.request import Hypothesis
from regard.decoding.tree import SearchTree, beam_tree
from regard.inspection.recorder import find_attention_modules
from regard.inspection.trace import Trace
from regard.inspection.trace_format import SearchNode, TracedSearch
from regard.inspection.watch import DEFAULT_LIMIT, Replay, TaskRecords, parse_bytes
from regard.models.vision import ImageClassifier
from regard.tasks import replay
from regard.tasks.classifier import Classifier, Embedder
from regard.tasks.completer import Completer
from regard.tasks.filler import BLANK_PATTERN, Filler, encode_with_blanks
from regard.tasks.search import Beam, SearchInputs
from regard.tasks.task import Task, check_lengths, max_positions
from regard.tasks.translator import Translator

TITLE_LENGTH = 80
"""Characters of a text that stand above a picture."""


@dataclass(frozen=True, kw_only=True)
class _RecordedBeam(Beam):
    """A beam search whose trees are kept."""

    trees: list[SearchTree] = field(default_factory=list)

    @staticmethod
    def of(beams: int, limit: int | None = None) -> "_RecordedBeam":
        """As the commands search: one beam is greedy search."""
        return _RecordedBeam(beams=beams, nbest=beams, length_penalty="mean" if beams > 1 else "none", limit=limit)

    def _run(self, problem: SearchInputs, options: dict[str, Any]) -> list[list[Hypothesis]]:
        found = beam_tree(problem.model, problem.memory, beams=self.beams, nbest=self.nbest,  # type: ignore[arg-type]
                          length_penalty=self.length_penalty,
                          **{name: value for name, value in options.items() if name != "min_length"})
        self.trees.extend(tree for _, tree in found)
        return [hypotheses for hypotheses, _ in found]


def trace_translation(translator: Translator, text: str, *, beams: int = 5, choice: int = 0, prefix: str = "",
               name: str = "") -> Trace:
    """The translation of a text, by a search whose tree is kept.

    Args:
        beams: how many beginnings are followed.
        choice: which of the results is looked at; 0 is the best.
        prefix: how the translation begins.
        name: of the model, for people.
    """
    _check_text(text)
    search, both = _RecordedBeam.of(beams), translator.pair_tokenizer()
    [best] = translator.searched([text], search, prefix=prefix)
    results = [best, *best.alternatives]
    if not 0 <= choice < len(results):
        raise checks.wrong("choice", f"one of the {len(results)} results of the search, from 0", choice)
    beginning = both.encode_targets([prefix])[0]
    tree = _search_tree(search.trees[0], beams, both.target, beginning, best.log_probabilities)
    return _trace_pair(translator, text, results[choice], name, tree)


def trace_forced(translator: Translator, text: str, translation: str, *, name: str = "") -> Trace:
    """A translation that somebody else wrote; its score is the mean of its log-probabilities."""
    _check_text(text)
    both = translator.pair_tokenizer()
    ids, end = both.encode_targets([translation])[0], translator.end()[0]
    memory = translator.model.encode(translator.tokens(both.encode_sources([text])))  # type: ignore[operator]
    [logs] = forcing.forced(translator.model, memory, [[translator.start()]], [[*ids, end]])  # type: ignore[arg-type]
    return _trace_pair(translator, text, Hypothesis(ids, logs, sum(logs) / len(logs), end), name)


def trace_completion(completer: Completer, text: str, *, limit: int = 0, beams: int = 1, name: str = "") -> Trace:
    """A text, and what a language model writes after it: at most `limit` tokens. With 0 it is only read."""
    if not limit:
        _check_text(text)
        first = [] if completer.special.cls is None else [completer.special.cls]
        ids = [*first, *completer.text_tokenizer().encode(text)]
        check_lengths("text", [ids], max_positions(completer.model.decoder))
        return _make_trace(completer, replay.replay_sequence(completer, ids, text), name)
    search = _RecordedBeam.of(beams, limit)
    [found] = completer.searched([text], search)
    tree = _search_tree(search.trees[0], beams, completer.text_tokenizer())
    return _make_trace(completer, replay.replay_completion(completer, found.prompt_ids, found), name, tree)


def trace_input(task: Filler | Classifier | Embedder, text: str, *, name: str = "") -> Trace:
    """A text that a model reads; a blank in it, ___, is a hidden token for a model that fills in."""
    if isinstance(task, Filler) and BLANK_PATTERN.search(text):
        [ids] = task.framed([encode_with_blanks(task.text_tokenizer(), text, task.mask())])
    else:
        [ids] = task.text_ids([text])
    return _make_trace(task, replay.replay_sequence(task, ids, text), name)


def trace_image(classifier: Classifier, image: Tensor, *, title: str = "", name: str = "") -> Trace:
    """An image (C, H, W), scaled as in training, in patches."""
    if not isinstance(classifier.model, ImageClassifier):
        raise checks.wrong("classifier", "one of images", "one of texts")
    return replace(_make_trace(classifier, replay.replay_image(classifier, image), name), title=title)


def _trace_pair(translator: Translator, text: str, found: replay.WrittenHypothesis, name: str, tree: TracedSearch | None = None) -> Trace:
    if not found.ids and found.cut:
        raise checks.wrong("text", "one that something is written for", "one that nothing came of")
    [source] = translator.pair_tokenizer().encode_sources([text])
    return _make_trace(translator, replay.replay_translation(translator, text, source, found, translator.start()), name, tree)


def _make_trace(task: Task, reading: Replay, name: str, tree: TracedSearch | None = None) -> Trace:
    """What the model looks at when it reads this once more."""
    if not find_attention_modules(task.model):
        raise ValueError("There is nothing to see: this model has no attention.")
    records = TaskRecords(task.model, parse_bytes(DEFAULT_LIMIT))
    records.replays.append(reading)
    found = records.trace(model=name)
    title = found.title if len(found.title) <= TITLE_LENGTH else found.title[:TITLE_LENGTH - 1].rstrip() + "…"
    return replace(found, title=title, search=tree)


def _search_tree(tree: SearchTree, beams: int, tokenizer: Tokenizer, beginning: Sequence[int] = (),
            logs: Sequence[float] = ()) -> TracedSearch:
    """The tree in words, behind what was asked to be its beginning, with the log-probabilities of that."""
    nodes, total = list[SearchNode](), 0.0
    for id_, log in zip(beginning, logs, strict=False):
        total += log
        nodes.append(SearchNode(len(nodes) - 1, tokenizer.pieces([id_])[0], log, total, False, True))
    shift, ids = len(nodes), sorted({branch.token for branch in tree.branches})
    pieces = dict(zip(ids, tokenizer.pieces(ids), strict=True))
    for branch in tree.branches:
        parent = branch.parent + shift if branch.parent >= 0 else shift - 1
        nodes.append(SearchNode(parent, pieces[branch.token], branch.log_probability, total + branch.total, branch.ended,
                          branch.kept))
    return TracedSearch(beams, tuple(nodes), tuple(place + shift for place in tree.best), tree.left_out or None)


def _check_text(text: str) -> None:
    if not isinstance(text, str):
        raise checks.wrong("text", "a text", *checks.kind(text))
    if is_blank(text):
        raise checks.wrong("text", "a text with something in it", repr(text))
