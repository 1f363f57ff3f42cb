"""A PO file of 200 entries: placeholders as many and in order, nothing else changed, and it reads well."""

import random
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from marked import KINDS, marked

from regard.data.sources.formats import read_pairs
from regard.data.tokenizer.interface import Span
from regard.tasks.alignment import Alignment
from regard.tasks.documents import TextDocument
from regard.tasks.evaluation import chrf
from regard.tasks.placeholder_translation import translate_with_placeholders
from regard.tasks.placeholders import STAND_IN, find_placeholders
from regard.tasks.task import isolate_errors

ENTRIES = 200
HEADER = 'msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\n"\n'


class Silent:
    """A watcher that is told nothing of interest."""

    def begin(self, done, total):
        pass

    def advance(self, done):
        pass

    def fail(self, where, error):
        raise error


class Knowing:
    """Knows the translation of each sentence by heart, with what was left in place of a placeholder or without, and
    copies nothing; and which words belong together, as often as `sure` says."""

    def __init__(self, sentences, sure=1.0):
        self.known, self.sure, self.asked = {}, sure, []
        for one in sentences:
            text = one.pair.source
            if one.replaced is not None:
                start, end = one.pair.source_offsets[one.replaced]
                text = text[:start] + STAND_IN + text[end:]
            self.known[text] = one

    def ask(self, texts):
        self.asked += texts
        made = [self.known[text].pair.target if text in self.known else "Rien du tout." for text in texts]
        return [SimpleNamespace(text=text, score=-1.0, cut=False, alternatives=()) for text in made]

    def align(self, texts, found):
        return [self._alignment(text, self.known[text]) for text in texts]

    def _alignment(self, text, one):
        pair, draw = one.pair, random.Random(text)
        moved = len(text) - len(pair.source)
        spans = tuple(Span(start + moved * (one.replaced is not None and number > one.replaced),
                           end + moved * (one.replaced is not None and number >= one.replaced))
                      for number, (start, end) in enumerate(pair.source_offsets))
        weights = torch.zeros(len(pair.target_words), len(spans))
        for source, target in pair.alignment:
            weights[target, source if draw.random() < self.sure else draw.randrange(len(spans))] = 1.0
        return Alignment(tuple(text[start:end] for start, end in spans), pair.target_words, weights, spans,
                         tuple(Span(*span) for span in pair.target_offsets))


def escaped(text):
    return text.replace("\\", "\\\\").replace('"', '\\"')


@pytest.fixture(scope="module")
def sentences():
    return marked(ENTRIES)


@pytest.fixture(scope="module")
def written(sentences, tmp_path_factory):
    """The file, and what was made of it by a model that knows everything but placeholders."""
    folder, model = tmp_path_factory.mktemp("po"), Knowing(sentences)
    source, target = folder / "a.po", folder / "b.po"
    source.write_text(HEADER + "".join(f'\n# c\n#: a.c:{number}\nmsgid "{escaped(one.source)}"\nmsgstr "old"\n'
                                       for number, one in enumerate(sentences)), encoding="utf-8")
    work = partial(isolate_errors, work=lambda texts: translate_with_placeholders(texts, model.ask, model.align))
    TextDocument(str(source)).translate(work, str(target), settings={}, watcher=Silent())
    return source, target


@pytest.mark.thorough
def test_placeholders_are_as_many_and_in_order(written, sentences):
    found = list(read_pairs([written[1]]))
    assert [pair.source for pair in found] == [one.source for one in sentences]
    for pair in found:
        assert find_placeholders(pair.target) == find_placeholders(pair.source) != []


def test_nothing_but_targets_changes(written):
    before, after = (path.read_bytes().split(b"\n") for path in written)
    assert [line for line in after if not line.startswith(b"msgstr")] == [
        line for line in before if not line.startswith(b"msgstr")]
    assert [line.startswith(b"msgstr") for line in before] == [line.startswith(b"msgstr") for line in after]
    assert after[:2] == before[:2]
    assert b'msgstr "old"' not in after


def test_what_is_made_with_right_links_is_right(written, sentences):
    assert [pair.target for pair in read_pairs([written[1]])] == [one.target for one in sentences]


@pytest.mark.parametrize(("sure", "least"), [(0.8, 95.0), (0.0, 80.0)])
def test_wrong_links_do_some_harm_and_lose_no_placeholder(sentences, sure, least):
    model = Knowing(sentences, sure)
    found = translate_with_placeholders([one.source for one in sentences], model.ask, model.align)
    assert {one.strategy for one in found} == {"placed"}
    assert chrf([one.text for one in found], [one.target for one in sentences]).value > least
    for one, sentence in zip(found, sentences, strict=True):
        assert find_placeholders(one.text) == find_placeholders(sentence.source)


def test_pieces_of_a_sentence_are_not_asked_for(sentences):
    model = Knowing(sentences)
    translate_with_placeholders([one.source for one in sentences], model.ask, model.align)
    for kind in KINDS:
        (first, *_) = [one for one in sentences if one.kind == kind]
        asked = [text for text in model.asked if text in (first.source, first.pair.source)]
        assert asked[0] == first.source  # as it is, before anything else
    assert len(model.asked) < 3 * ENTRIES
