"""Training of a masked language model: filtered lines, masking, losses and scores."""

import re
from collections import Counter

import numpy as np
import pytest
import torch
from tiny import EMBEDDINGS, LANGUAGE, stack
from torch.nn import functional as F

from regard.data import phrasebook
from regard.data.batches.batch import MaskingConfig, StoredReader
from regard.data.batches.feed import BatchConfig
from regard.data.filters import FilterConfig
from regard.data.sources.text import DataError
from regard.data.tokenizer.training import UnigramConfig
from regard.models.language import MaskedModelConfig
from regard.tokens import IGNORED_LABEL
from regard.training.config import DataConfig
from regard.training.tasks import masked
from regard.training.tasks.common import open_inputs
from regard.training.tasks.interface import TrainingTask
from regard.training.tasks.masked import FilteredLines, read_statistics

TEXTS = [pair.source for pair in phrasebook.pairs(300, split="train")]
TOKENIZER = UnigramConfig(vocab_size=400)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Texts, some of them twice, and their survey."""
    path = tmp_path_factory.mktemp("masked") / "texts.txt"
    path.write_text("\n".join([*TEXTS, "", *TEXTS[:50]]) + "\n")
    return masked.survey_sentences([str(path)], [], DataConfig(validation_fraction=0.1))


@pytest.fixture(scope="module")
def prepared(data, tmp_path_factory):
    return masked.prepare_sentences(data, TOKENIZER, tmp_path_factory.mktemp("ids"))


def model_of(prepared, embedding="sinusoidal"):
    return MaskedModelConfig(vocab_size=prepared.vocabulary, width=16, embedding=EMBEDDINGS[embedding],
                        stack=stack(norm_position="pre"))


def test_what_is_in_the_files(data):
    distinct = len(set(TEXTS))
    assert data.statistics.count == distinct
    assert data.statistics.dropped == {"empty": 1, "duplicate": 350 - distinct}
    assert data.warnings == (f"Read 351 texts from {data.texts.inputs[0].name.rpartition('/')[2]}. Skipped "
                             f"{351 - distinct}: 1 empty, {350 - distinct} duplicates.",)
    assert data.held_out.sum() == round(0.1 * distinct)
    learned, judged = list(data.training_texts()), list(data.validation_texts())
    assert sorted(learned + judged) == sorted(set(TEXTS))
    assert not set(learned) & set(judged)
    assert masked.MaskedSetup().data_defaults(data, {})[0].value == 0.1


def test_equal_texts_are_on_one_side(file):
    text = file("a.txt", "\n".join(TEXTS * 2))
    survey = masked.survey_sentences([text], [], DataConfig(validation_fraction=0.2, filters=FilterConfig(drop=())))
    learned, judged = list(survey.training_texts()), list(survey.validation_texts())
    assert len(learned) + len(judged) == 2 * len(TEXTS)
    assert not set(learned) & set(judged)
    assert judged


def test_validation_that_is_given(file):
    survey = masked.survey_sentences([file("a.txt", "\n".join(TEXTS))],
                                     [file("b.txt", f"{TEXTS[3]}\nSomething else.\n")],
                           DataConfig(validation_fraction=0.5))
    assert not survey.held_out.any()
    assert list(survey.validation_texts()) == [TEXTS[3], "Something else."]
    assert survey.warnings[-1] == "1 of 2 validation texts are in the training data too."
    assert masked.MaskedSetup().data_defaults(survey, {})[0].value == 0.0
    for data, validation, message in ((" \n", "a", r"a.txt: No training texts"),
                                      ("a", "", r"b.txt: No validation texts")):
        with pytest.raises(DataError, match=message):
            masked.survey_sentences([file("a.txt", data)], [file("b.txt", validation)], DataConfig())


def test_ids_are_those_of_the_texts(data, prepared):
    decode = prepared.tokenizer.decode
    assert [decode(prepared.training[number].tolist()) for number in range(len(prepared.training))] == [
        prepared.tokenizer.normalize(text) for text in data.training_texts()]
    assert len(prepared.validation) == int(data.held_out.sum())
    assert prepared.tokens == len(prepared.training.stream)


def test_the_second_time_nothing_is_trained(data, tmp_path, monkeypatch):
    first = masked.prepare_sentences(data, TOKENIZER, tmp_path)
    monkeypatch.setattr("regard.data.tokenizer.training.train_tokenizer", None)
    monkeypatch.setattr("regard.data.store.write_store", None)
    assert masked.prepare_sentences(data, TOKENIZER, tmp_path).tokenizer.sha256 == first.tokenizer.sha256


def test_it_learns_and_is_judged(data, prepared, settings):
    made_from = model_of(prepared)
    work = masked.MaskedTask(prepared, made_from, settings(tokens=600, masking=MaskingConfig()))
    assert isinstance(work, TrainingTask)
    model = made_from.build()
    task, feed, objective = work.wrap(model), work.feed(0, 1), work.objective(model)
    model.train()
    before = work.validate(task)
    assert work.validate(task).scores == before.scores  # the same tokens are hidden every time
    assert model.training
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    for step in range(40):
        batch = feed.at(step)
        (objective(batch).total / batch.tokens).backward()
        optimiser.step()
        optimiser.zero_grad()
    verdict = work.validate(task)
    assert verdict.scores["loss"] < before.scores["loss"] - 1
    assert verdict.scores["accuracy"] > before.scores["accuracy"]
    assert len(verdict.examples) == 2
    for given, wanted, made in verdict.examples:
        assert given.replace("___", wanted) in set(data.validation_texts())
        assert wanted
        assert isinstance(made, str)


def test_the_scores_are_those_of_all_hidden_tokens(prepared, settings):
    made_from = model_of(prepared)
    work = masked.MaskedTask(prepared, made_from, settings(tokens=100, masking=MaskingConfig(), shown=0))
    model = made_from.build().eval()
    batch = work.validation_collator(np.arange(len(prepared.validation)), 0)
    with torch.no_grad():
        logits = model(batch.inputs)
    counted = batch.labels != IGNORED_LABEL
    scores = work.validate(work.wrap(model)).scores
    assert abs(scores["loss"] - float(F.cross_entropy(logits[counted], batch.labels[counted]))) < 1e-5
    right = (logits.argmax(-1) == batch.labels)[counted].float().mean()
    assert abs(scores["accuracy"] - float(right)) < 1e-6


def test_a_word_is_hidden_with_all_its_tokens(prepared, settings, monkeypatch):
    work = masked.MaskedTask(prepared, model_of(prepared), settings(masking=MaskingConfig(), shown=30))
    task, asked = work.wrap(work.model_config.build()), []
    fill_ids = task.fill_ids
    monkeypatch.setattr(task, "fill_ids", lambda rows, top_k: asked.extend(rows) or fill_ids(rows, top_k=top_k))
    examples, mask = work.validate(task).examples, prepared.tokenizer.special.mask
    assert len(examples) == len(asked) > 10
    assert max(row.count(mask) for row in asked) > 1
    for number, (row, example) in enumerate(zip(asked, examples, strict=True)):
        both = list(zip(prepared.validation[number].tolist(), row, strict=True))
        assert all(one == other for one, other in both if other != mask)
        hidden = [one for one, other in both if other == mask]
        assert prepared.tokenizer.decode(hidden).strip() == example.target


def test_texts_are_cut_to_the_positions_of_the_model(prepared, settings):
    work = masked.MaskedTask(prepared, model_of(prepared, "learned"), settings(masking=MaskingConfig()))
    count = len(prepared.training)
    many = sum(len(prepared.training[number]) > 12 for number in range(count))
    assert work.notes == (f"Truncated {many} of {count} texts to the 12 positions of the model.",)
    feed = work.feed(0, 1)
    longest = max(feed.at(step).inputs.ids.shape[1] for step in range(feed.steps))
    assert longest == 12
    work.validate(work.wrap(work.model_config.build()))
    few = masked.masked_feed(prepared, BatchConfig(max_tokens=200, shapes="few"), MaskingConfig(), seed=1, longest=12)
    assert {few.at(step).inputs.ids.shape[1] for step in range(few.steps)} <= set(range(13))
    packed = BatchConfig(max_tokens=600, layout="packed", shapes="few")
    one = masked.masked_feed(prepared, packed, MaskingConfig(), seed=1, longest=12)
    batches = [one.at(step) for step in range(one.steps)]
    assert {(batch.rows, batch.inputs.ids.shape) for batch in batches} == {
        (rows, (1, *lengths)) for rows, lengths in one.plan.shapes}
    assert max(batch.inputs.lengths.max() for batch in batches) == 12
    assert sorted(number for batch in batches for number in batch.numbers) == list(range(count))


def test_epochs_hide_other_tokens(prepared, settings):
    feed = masked.MaskedTask(prepared, model_of(prepared), settings(masking=MaskingConfig())).feed(0, 1)
    steps = range(feed.steps)
    first, second = ({(int(number), place) for batch in (feed.at(epoch * feed.steps + step) for step in steps)
                      for number, row in zip(batch.numbers, batch.labels.tolist(), strict=True)
                      for place, label in enumerate(row) if label != IGNORED_LABEL} for epoch in (0, 1))
    assert first != second
    assert 0.1 < len(first) / prepared.tokens < 0.2


def test_something_is_hidden_in_the_smallest_text(file, tmp_path, settings):
    survey = masked.survey_sentences([file("a.txt", "\n".join(TEXTS))], [file("b.txt", "Yes.\n")], DataConfig())
    prepared = masked.prepare_sentences(survey, TOKENIZER, tmp_path / "data")
    work = masked.MaskedTask(prepared, model_of(prepared), settings(masking=MaskingConfig(mlm_probability=0.05)))
    scores = work.validate(work.wrap(work.model_config.build())).scores
    assert 0 < scores["loss"] < 20
    assert StoredReader(prepared.validation)(np.arange(1), 0)[0].lengths[0] >= 1


def test_texts_in_which_nothing_would_ever_be_hidden(prepared, settings, monkeypatch):
    monkeypatch.setattr(masked, "MAX_MASKING_SEEDS", 3)
    with pytest.raises(ValueError,
                       match=r"`training.masking.mlm_probability` must be large enough to mask a token .* is 1e-15"):
        masked.MaskedTask(prepared, model_of(prepared), settings(masking=MaskingConfig(mlm_probability=1e-15)))


def test_what_does_not_go_together(prepared, settings):
    for masking in (None, MaskingConfig(mlm_probability=0)):
        with pytest.raises(ValueError, match=r"`training.masking.mlm_probability` must be above 0"):
            masked.MaskedTask(prepared, model_of(prepared), settings(masking=masking))
    with pytest.raises(ValueError, match=r'`model.kind` must be "masked", .* but is "language"'):
        masked.MaskedTask(prepared, LANGUAGE["learned"], settings(masking=MaskingConfig()))


LINES = ["A cat.", "", " \u200b\u00a0", "A dog.", "A cat.", "w " * 5, "x" * 21, "A bird."]


def texts(file, **options):
    filters = FilterConfig(max_words=4, max_characters=20, **options)
    return FilteredLines(open_inputs([file("a.txt", "\n".join(LINES[:4]) + "\r\n"),
                                      file("b.txt", "\n".join(LINES[4:]))]), filters)


def test_what_stays_and_what_is_left_out(file):
    dropped = Counter()
    assert list(texts(file).read(dropped, iter)) == ["A cat.", "A dog.", "A bird."]
    assert dropped == {"empty": 2, "duplicate": 1, "too_long": 2}
    assert list(texts(file)) == ["A cat.", "A dog.", "A bird."]


def test_only_empty_lines_are_always_left_out(file):
    assert list(texts(file, drop=())) == [line for line in LINES if re.search(r"\w", line)]


def test_what_is_met(file):
    counted = []
    found = read_statistics(texts(file), lambda given: (counted.append(one) or one for one in given))
    assert len(counted) == len(LINES)
    assert found.count == 3
    assert len(np.unique(found.hashes)) == 3
    same = read_statistics(texts(file, drop=()), iter)
    assert same.hashes[0] == same.hashes[2] == found.hashes[0]


def test_a_bad_byte_is_named(file):
    with pytest.raises(DataError, match=r"bad.txt:2: byte 1: 0xFF is not UTF-8"):
        list(FilteredLines(open_inputs([file("bad.txt", b"fine\n\xff\n")]), FilterConfig()))
